// Device view of one sequence's penalty table, which one thread changes and others read.
#pragma once

#include "kernels/cuda/portable.h"
#include "kernels/cuda/sampling/penalties.h"

namespace sinkstream::cuda {

struct PenaltyTable {
  PenaltyHead* head;
  PenaltyHashEntry* hash;  // [mask + 1], open addressing
  TokenCount* counts;      // [head->distinct], dense: every live id once, in no particular order
  int32_t* tokens;         // [sinks + window]
  uint32_t mask;
};

__device__ inline PenaltyTable penalty_table(const PenaltyTables& tables, int32_t table) {
  const PenaltyLayout layout{tables.capacity};
  std::byte* memory = tables.memory + table * layout.bytes();
  return {reinterpret_cast<PenaltyHead*>(memory),
          reinterpret_cast<PenaltyHashEntry*>(memory + layout.hash_offset()),
          reinterpret_cast<TokenCount*>(memory + layout.counts_offset()),
          reinterpret_cast<int32_t*>(memory + layout.tokens_offset()),
          uint32_t(layout.hash_size() - 1)};
}

// 2^32 divided by the golden ratio spreads neighbors (Knuth, volume 3, 6.4).
__device__ inline uint32_t hash_of(const PenaltyTable& table, int32_t id) {
  return (uint32_t(id) * 0x9E3779B1u >> 7) & table.mask;
}

// Where `id` is in the hash, or the empty entry where it would go.
__device__ inline uint32_t find_entry(const PenaltyTable& table, int32_t id) {
  uint32_t at = hash_of(table, id);
  while (table.hash[at].id >= 0 && table.hash[at].id != id) at = (at + 1) & table.mask;
  return at;
}

__device__ inline void count_token(const PenaltyTable& table, int32_t id) {
  PenaltyHashEntry& entry = table.hash[find_entry(table, id)];
  if (entry.id == id) {
    ++table.counts[entry.count_index].count;
    return;
  }
  entry = {id, table.head->distinct++};
  table.counts[entry.count_index] = {id, 1};
}

__device__ inline void uncount_token(const PenaltyTable& table, int32_t id) {
  uint32_t hole = find_entry(table, id);
  const int32_t index = table.hash[hole].count_index;
  if (--table.counts[index].count > 0) return;

  // The last count takes the place of the removed one.
  const TokenCount last = table.counts[--table.head->distinct];
  table.counts[index] = last;
  table.hash[find_entry(table, last.id)].count_index = index;

  // Later entries of the probe sequence move up, so that no search stops at the hole too early.
  for (uint32_t next = (hole + 1) & table.mask; table.hash[next].id >= 0;
       next = (next + 1) & table.mask) {
    const uint32_t wanted = hash_of(table, table.hash[next].id);
    if (((next - wanted) & table.mask) < ((next - hole) & table.mask)) continue;
    table.hash[hole] = table.hash[next];
    hole = next;
  }
  table.hash[hole].id = -1;
}

// Where the token of an index is in `tokens`.
__device__ inline int64_t token_offset(const PenaltyHead& head, int64_t index) {
  if (index < head.sinks) return index;
  return head.sinks + (index - head.sinks) % head.window;
}

// Appends a token, in one thread; a full window evicts its oldest.
__device__ inline void append_token(const PenaltyTable& table, int32_t id) {
  const PenaltyHead head = *table.head;
  table.head->length = head.length + 1;
  const int64_t evicted = head.length - head.window;
  if (evicted >= head.sinks) uncount_token(table, table.tokens[token_offset(head, evicted)]);
  table.tokens[token_offset(head, head.length)] = id;
  count_token(table, id);
}

}  // namespace sinkstream::cuda
