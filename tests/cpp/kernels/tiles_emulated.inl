// A tile unit in plain code: the interface of csrc/kernels/cpu/linear/amx_instructions.inl, and the
// arithmetic of Note: [What the tile unit adds]. Each thread has its own, as on a processor. What
// would be a fault on the processor is an InternalError. Include after kernels/emulated_lanes.h.
#include "kernels/cpu/linear/amx_tiles.inl"

namespace tiles {

struct Unit {
  bool is_configured = false;
  TileShapes shapes;
  std::byte rows[kTileRegisters][kTileRows][kTileRowBytes];
};

inline Unit& unit() {
  static thread_local Unit unit;
  return unit;
}

inline void zero(int at) { std::memset(unit().rows[at], 0, sizeof(unit().rows[at])); }

inline void configure(const TileShapes& shapes) {
  SINKSTREAM_CHECK(shapes.palette == 1, "palette is ", int{shapes.palette});
  for (int i = 0; i < 16; ++i) {
    const bool is_there = i < kTileRegisters;
    SINKSTREAM_CHECK(shapes.row_bytes[i] <= (is_there ? kTileRowBytes : 0) &&
                         shapes.rows[i] <= (is_there ? kTileRows : 0) &&
                         (shapes.row_bytes[i] == 0) == (shapes.rows[i] == 0),
                     "register ", i, " has ", int{shapes.rows[i]}, " rows of ", shapes.row_bytes[i],
                     " bytes");
  }
  unit().is_configured = true;
  unit().shapes = shapes;
  for (int i = 0; i < kTileRegisters; ++i) zero(i);
}

inline void release() {
  unit().is_configured = false;
  unit().shapes = {};
}

// The number of rows in use of a register.
inline int rows_of(int at) {
  SINKSTREAM_CHECK(unit().is_configured && unit().shapes.rows[at] > 0, "register ", at,
                   " has no shape");
  return unit().shapes.rows[at];
}

inline void clear_register(int to) {
  rows_of(to);
  zero(to);
}

inline void load_register(int to, const void* from, int64_t stride) {
  const int rows = rows_of(to), bytes = unit().shapes.row_bytes[to];
  zero(to);
  for (int row = 0; row < rows; ++row) {
    std::memcpy(unit().rows[to][row], static_cast<const std::byte*>(from) + row * stride, bytes);
  }
}

inline void store_register(int from, void* to, int64_t stride) {
  const int rows = rows_of(from), bytes = unit().shapes.row_bytes[from];
  for (int row = 0; row < rows; ++row) {
    std::memcpy(static_cast<std::byte*>(to) + row * stride, unit().rows[from][row], bytes);
  }
}

// One row of sums, in the first `columns` of them.
template <typename Sums>
void multiply_row(void (*add)(Sums&, const std::byte*, const std::byte*, int), std::byte* sums_row,
                  const std::byte* inputs_row, int weights, int columns) {
  Sums sums;
  std::memcpy(&sums, sums_row, kTileRowBytes);
  add(sums, inputs_row, unit().rows[weights][0], unit().shapes.rows[weights]);
  std::memcpy(sums_row, &sums, 4 * columns);
}

template <typename Sums>
void multiply_registers(void (*add)(Sums&, const std::byte*, const std::byte*, int), int sums,
                        int inputs, int weights) {
  const TileShapes& shapes = unit().shapes;
  SINKSTREAM_CHECK(rows_of(sums) == rows_of(inputs) &&
                       shapes.row_bytes[inputs] == 4 * rows_of(weights) &&
                       shapes.row_bytes[sums] == shapes.row_bytes[weights],
                   "the shapes of registers ", sums, ", ", inputs, ", ", weights, " do not fit");
  for (int row = 0; row < rows_of(sums); ++row) {
    multiply_row(add, unit().rows[sums][row], unit().rows[inputs][row], weights,
                 shapes.row_bytes[sums] / 4);
  }
}

template <int kTo>
void clear() {
  clear_register(kTo);
}
template <int kTo>
void load(const void* from, int64_t stride = kTileRowBytes) {
  load_register(kTo, from, stride);
}
template <int kFrom>
void store(void* to) {
  store_register(kFrom, to, kTileRowBytes);
}
template <int kSums, int kInputs, int kWeights>
void multiply() {
  multiply_registers(emulated_lanes::add_tile_row, kSums, kInputs, kWeights);
}
template <int kSums, int kInputs, int kWeights>
void multiply_bytes() {
  multiply_registers(emulated_lanes::add_tile_row_of_bytes, kSums, kInputs, kWeights);
}

}  // namespace tiles
