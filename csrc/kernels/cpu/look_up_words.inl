// `look_up_values` of tables that look up halfwords: sixteen lanes, real or emulated.
#pragma once

// The value of each half's low four bits, as 16-bit integers. The lookup reads five bits, so the
// table holds the values twice.
SINKSTREAM_INLINE PairVec look_up_values(UintVec codes, const int (&values)[16]) {
  UintVec table{};
  for (int i = 0; i < kLanes; ++i) {
    const int even = values[2 * i % 16], odd = values[2 * i % 16 + 1];
    table[i] = (static_cast<uint32_t>(even) & 0xffff) | static_cast<uint32_t>(odd) << 16;
  }
  return reinterpret_cast<PairVec>(look_up(codes, table));
}
