// The penalty table of one sequence, as one thread changes it and others read it.
#pragma once

#include "kernels/cuda/portable.h"
#include "kernels/cuda/sampling/penalties.h"

namespace sinkstream::cuda {

struct PenaltyTable {
  PenaltyHead* head;
  PenaltySeat* seats;  // [mask + 1], open addressing
  TokenCount* counts;  // [head->distinct], dense: every live id once, in no particular order
  int32_t* tokens;     // [sinks + window]
  uint32_t mask;
};

__device__ inline PenaltyTable penalty_table(const PenaltyTables& tables, int32_t table) {
  const PenaltyLayout layout{tables.capacity};
  std::byte* memory = tables.memory + table * layout.bytes();
  return {reinterpret_cast<PenaltyHead*>(memory),
          reinterpret_cast<PenaltySeat*>(memory + layout.places_offset()),
          reinterpret_cast<TokenCount*>(memory + layout.counts_offset()),
          reinterpret_cast<int32_t*>(memory + layout.tokens_offset()),
          uint32_t(layout.slots() - 1)};
}

// 2^32 divided by the golden ratio spreads neighbours (Knuth, volume 3, 6.4).
__device__ inline uint32_t home_of(const PenaltyTable& table, int32_t id) {
  return (uint32_t(id) * 0x9E3779B1u >> 7) & table.mask;
}

// The slot of `id`, or the empty one where it would go.
__device__ inline uint32_t find_slot(const PenaltyTable& table, int32_t id) {
  uint32_t slot = home_of(table, id);
  while (table.seats[slot].id >= 0 && table.seats[slot].id != id) slot = (slot + 1) & table.mask;
  return slot;
}

__device__ inline void count_token(const PenaltyTable& table, int32_t id) {
  PenaltySeat& seat = table.seats[find_slot(table, id)];
  if (seat.id == id) {
    ++table.counts[seat.seat].count;
    return;
  }
  seat = {id, table.head->distinct++};
  table.counts[seat.seat] = {id, 1};
}

__device__ inline void uncount_token(const PenaltyTable& table, int32_t id) {
  uint32_t hole = find_slot(table, id);
  const int32_t seat = table.seats[hole].seat;
  if (--table.counts[seat].count > 0) return;

  // The last count takes the seat of the one that goes.
  const TokenCount last = table.counts[--table.head->distinct];
  table.counts[seat] = last;
  table.seats[find_slot(table, last.id)].seat = seat;

  // Later entries of the probe sequence move up, so that no search stops at the hole too early.
  for (uint32_t next = (hole + 1) & table.mask; table.seats[next].id >= 0;
       next = (next + 1) & table.mask) {
    const uint32_t wanted = home_of(table, table.seats[next].id);
    if (((next - wanted) & table.mask) < ((next - hole) & table.mask)) continue;
    table.seats[hole] = table.seats[next];
    hole = next;
  }
  table.seats[hole].id = -1;
}

// Where the token of an index lies among `tokens`.
__device__ inline int64_t token_place(const PenaltyHead& head, int64_t index) {
  if (index < head.sinks) return index;
  return head.sinks + (index - head.sinks) % head.window;
}

// For one thread: the next token; the oldest one of a full window goes.
__device__ inline void append_token(const PenaltyTable& table, int32_t id) {
  const PenaltyHead head = *table.head;
  table.head->length = head.length + 1;
  const int64_t evicted = head.length - head.window;
  if (evicted >= head.sinks) uncount_token(table, table.tokens[token_place(head, evicted)]);
  table.tokens[token_place(head, head.length)] = id;
  count_token(table, id);
}

}  // namespace sinkstream::cuda
