// The tile unit's registers: what the real one (linear/amx_instructions.inl) and the emulated one
// of the tests share. Both offer, in a namespace `tiles`, for register numbers known when
// compiling:
//
//   configure(shapes)  release()  clear<to>()  load<to>(from)  store<from>(to)
//   multiply<sums, inputs, weights>()
//
// Rows lie one behind the other in memory, as wide as a register is.
//
// Note: [What the tile unit adds]
// A row of `inputs` holds pairs of bfloat16 along K, row k of `weights` the pairs that meet pair k,
// one for each column. For every element of `sums` by itself (Intel's manual, TDPBF16PS):
//
//   even = 0, then for rising k one fma with the pair's first numbers; odd likewise, the second;
//   sum  = sum + (even + odd)
//
// rounded to nearest even after each step, denormals in and out as zeros of their sign, whatever
// the processor's float mode.

constexpr int kTileRegisters = 8;
constexpr int kTileRows = 16;      // of a register, at most
constexpr int kTileRowBytes = 64;  // likewise

// What `configure` takes, as the processor reads it from memory.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};  // by register; those past kTileRegisters stay 0
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);
