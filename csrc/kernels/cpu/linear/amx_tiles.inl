// The tile unit's registers, shared by the real unit (linear/amx_instructions.inl) and the tests'
// emulated one. Both provide, in a namespace `tiles`, with register numbers as template arguments:
//
//   configure(shapes)  release()  clear<to>()  load<to>(from, stride)  store<from>(to)
//   multiply<sums, inputs, weights>()  multiply_bytes<sums, inputs, weights>()
//
// In memory, rows are kTileRowBytes apart, even if a register's are shorter, or `stride` bytes.
//
// Note: [What the tile unit adds]
// A row of `inputs` holds pairs of bfloat16 along K; row k of `weights` holds the pairs that
// multiply pair k, one per column. For each element of `sums` (Intel's manual, TDPBF16PS):
//
//   even = 0, then in ascending k one fma with the first elements of the pairs;
//   odd  = the same with the second elements;
//   sum  = sum + (even + odd)
//
// rounded to nearest even after each step; denormal inputs and results become zeros of the same
// sign, regardless of the processor's float mode.
//
// `multiply_bytes` adds the products of signed bytes instead, four to a word, exactly (TDPBSSD).

constexpr int kTileRegisters = 8;
constexpr int kTileRows = 16;      // of a register, at most
constexpr int kTileRowBytes = 64;  // likewise

// The operand of `configure`, as the processor reads it from memory.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};  // by register; 0 from kTileRegisters on
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);
