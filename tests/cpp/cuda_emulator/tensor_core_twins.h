// The emulator's version of kernels/cuda/tensor_core.cuh. Note: [Fragments] there says which number
// is where. An error that a loader of fragments and its twin share shows only on a GPU.
#pragma once

#include "cuda_emulator/emulator.h"

namespace sinkstream::cuda {

namespace emulator {

// Reads this lane's words of four matrices; `word` builds one from a function that returns a number
// by row and column.
template <typename Word>
void load_fragment(uint32_t (&words)[4], const void* row, const CallSite& site, const Word& word) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
    throw Fault("load_fragment4: `row` must be a multiple of 16.");
  }
  const Words* rows = exchange(0xFFFFFFFFu, site, to_words(row));
  for (int m = 0; m < 4; ++m) {
    words[m] = word([&](int r, int column) -> uint32_t {
      uint16_t number;
      const auto* numbers = from_words<const uint16_t*>(given(rows, 8 * m + r));
      std::memcpy(&number, numbers + column, sizeof(number));
      return number;
    });
  }
}

}  // namespace emulator

template <typename T>
void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                  emulator::Where where = emulator::Where::current()) {
  const emulator::Fragment mine = {
      {a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {d[0], d[1], d[2], d[3]}};
  emulator::multiply_add<T>(mine, d, {"multiply_add", where});
}

inline void load_fragment4(uint32_t (&words)[4], const void* row,
                           emulator::Where where = emulator::Where::current()) {
  const int group = emulator::lane() / 4, pair = emulator::lane() % 4;
  emulator::load_fragment(words, row, {"load_fragment4", where}, [&](const auto& number) {
    return number(group, 2 * pair) | number(group, 2 * pair + 1) << 16;
  });
}

inline void load_fragment4_transposed(uint32_t (&words)[4], const void* row,
                                      emulator::Where where = emulator::Where::current()) {
  const int group = emulator::lane() / 4, pair = emulator::lane() % 4;
  emulator::load_fragment(words, row, {"load_fragment4_transposed", where},
                          [&](const auto& number) {
                            return number(2 * pair, group) | number(2 * pair + 1, group) << 16;
                          });
}

// Until it is awaited, the destination is NaN: neither the old numbers nor the new ones.
inline void copy_async(void* to_shared, const void* from_global) {
  emulator::begin_copy({to_shared, from_global});
  std::memset(to_shared, 0xFF, 16);
}

inline void copy_async_commit() { emulator::commit_copies(); }

template <int n>
void copy_async_wait() {
  for (emulator::Copy copy; emulator::take_copy(n, &copy);) std::memcpy(copy.to, copy.from, 16);
}

}  // namespace sinkstream::cuda
