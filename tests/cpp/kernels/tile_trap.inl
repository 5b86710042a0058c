// Runs AMX instructions on a processor without a tile unit: each raises SIGILL, whose handler
// decodes it and executes it on the emulated unit. So the compiled code of
// csrc/kernels/cpu/linear/amx_instructions.inl is tested on any x86-64, operands included. Include
// after tiles_emulated.inl; any other illegal instruction ends the program.

// One instruction with a VEX prefix of three bytes, and its operands. Names as in Intel's manual.
struct TileInstruction {
  int opcode, prefix;  // prefix: 0 none, 2 F3, 3 F2
  int reg, rm, vvvv;   // registers
  bool has_memory;
  std::byte* address;  // of a memory operand
  int64_t stride;      // likewise, its index
  int length;
};

inline int64_t general_register(const ucontext_t& context, int number) {
  constexpr int kRegisters[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                  REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                  REG_R12, REG_R13, REG_R14, REG_R15};
  return context.uc_mcontext.gregs[kRegisters[number]];
}

// Decodes the memory operand after the ModRM byte at code[4]; `extend_*` are the prefix's bits.
inline void decode_memory(const ucontext_t& context, const uint8_t* code, int extend_index,
                          int extend_base, TileInstruction* instruction) {
  const int mode = code[4] >> 6;
  int at = 5, base = (code[4] & 7) + extend_base;
  if ((code[4] & 7) == 4) {
    const int sib = code[at++];
    const int index = (sib >> 3 & 7) + extend_index;
    base = (sib & 7) + extend_base;
    if (index != 4) instruction->stride = general_register(context, index) << (sib >> 6);
  }
  const bool is_relative = mode == 0 && (code[4] & 7) == 5;
  int64_t displacement = 0;
  if (mode == 1) displacement = static_cast<int8_t>(code[at++]);
  if (mode == 2 || is_relative) {
    int32_t word;
    std::memcpy(&word, code + at, 4);
    displacement = word;
    at += 4;
  }
  const int64_t from =
      is_relative ? reinterpret_cast<int64_t>(code + at) : general_register(context, base);
  instruction->address = reinterpret_cast<std::byte*>(from + displacement);
  instruction->length = at;
}

inline TileInstruction decode(const ucontext_t& context) {
  const auto* code = reinterpret_cast<const uint8_t*>(context.uc_mcontext.gregs[REG_RIP]);
  TileInstruction instruction{};
  if (code[0] != 0xc4 || (code[1] & 0x1f) != 2) return instruction;
  instruction.opcode = code[3];
  instruction.prefix = code[2] & 3;
  instruction.vvvv = ~(code[2] >> 3) & 15;
  instruction.reg = code[4] >> 3 & 7;
  instruction.rm = code[4] & 7;
  instruction.length = 5;
  instruction.has_memory = code[4] >> 6 != 3;
  if (instruction.has_memory) {
    decode_memory(context, code, (~code[1] & 0x40) >> 3, (~code[1] & 0x20) >> 2, &instruction);
  }
  return instruction;
}

inline int64_t trapped_products = 0;

// Returns whether it is an AMX instruction.
inline bool perform(const TileInstruction& instruction) {
  const auto is = [&](int prefix, int opcode, bool has_memory) {
    return instruction.prefix == prefix && instruction.opcode == opcode &&
           instruction.has_memory == has_memory;
  };
  if (is(0, 0x49, true)) {
    TileShapes shapes;
    std::memcpy(&shapes, instruction.address, sizeof(shapes));
    tiles::configure(shapes);
  } else if (is(0, 0x49, false)) {
    tiles::release();
  } else if (is(3, 0x49, false)) {
    tiles::clear_register(instruction.reg);
  } else if (is(3, 0x4b, true)) {
    tiles::load_register(instruction.reg, instruction.address, instruction.stride);
  } else if (is(2, 0x4b, true)) {
    tiles::store_register(instruction.reg, instruction.address, instruction.stride);
  } else if (is(2, 0x5c, false)) {
    tiles::multiply_registers(emulated_lanes::add_tile_row, instruction.reg, instruction.rm,
                              instruction.vvvv);
    ++trapped_products;
  } else if (is(3, 0x5e, false)) {
    tiles::multiply_registers(emulated_lanes::add_tile_row_of_bytes, instruction.reg,
                              instruction.rm, instruction.vvvv);
  } else {
    return false;
  }
  return true;
}

inline void on_illegal_instruction(int, siginfo_t*, void* where) {
  auto& context = *static_cast<ucontext_t*>(where);
  const TileInstruction instruction = decode(context);
  if (!perform(instruction)) {
    signal(SIGILL, SIG_DFL);  // the same fault again ends the program
    return;
  }
  context.uc_mcontext.gregs[REG_RIP] += instruction.length;
}

// During its lifetime, AMX instructions of this process are emulated, unless the processor has
// them.
class TileTrap {
 public:
  TileTrap() {
    struct sigaction action = {};
    action.sa_sigaction = on_illegal_instruction;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, &before_);
  }
  ~TileTrap() { sigaction(SIGILL, &before_, nullptr); }
  TileTrap(const TileTrap&) = delete;
  TileTrap& operator=(const TileTrap&) = delete;

 private:
  struct sigaction before_ = {};
};
