#include "kernels/cuda/attention/evict.h"

#include <gtest/gtest.h>

#include "cuda/attention_call.h"
#include "cuda_emulator/orders.h"

namespace sinkstream::cuda {
namespace {

using emulator::in_orders_of_run;

// Indices of tokens in the order in which they move, and their destinations.
struct Moves {
  std::vector<int64_t> from, to;
};

// Moves the oldest `older` tokens of a window that begins at `first` up by `distance`.
Moves cut(int64_t first, int64_t older, int64_t distance) {
  Moves moves;
  for (int64_t i = first + older - 1; i >= first; --i) {
    moves.from.push_back(i);
    moves.to.push_back(i + distance);
  }
  return moves;
}

void evict_by_reference(TestStream* stream, const Moves& moves, const ShiftAngles& turn) {
  std::vector<Slot> from, to;
  for (const int64_t i : moves.from) from.push_back(stream->slot(i));
  for (const int64_t i : moves.to) to.push_back(stream->slot(i));
  ThreadPool pool(1);
  reference_kernels().evict({.from = from.data(),
                             .to = to.data(),
                             .rows = static_cast<int64_t>(from.size()),
                             .shape = stream->spec().shape,
                             .rotation = turn.rotation()},
                            {&pool});
}

std::vector<SequenceSlot> slots_of(const Window& window, const std::vector<int64_t>& tokens) {
  std::vector<SequenceSlot> slots;
  for (const int64_t i : tokens) {
    slots.push_back(
        {static_cast<int32_t>(window.sink_pages() + window.block(i) % window.window_pages()),
         static_cast<int32_t>(window.row(i))});
  }
  return slots;
}

// Moves tokens of a sequence whose layers 1 and 2 are these streams. Another sequence has a
// different layout.
void evict_on_gpu(const std::vector<const TestStream*>& layers, const Moves& moves,
                  const ShiftAngles& turn) {
  StreamSpec other_spec = layers[0]->spec();
  other_spec.window.sinks += 64;
  const TestStream bystander(other_spec, reference_kernels());
  GpuPool gpu({{&bystander}, {nullptr, layers[0], layers[1]}});
  const Window& window = layers[0]->spec().window;
  const auto from = slots_of(window, moves.from), to = slots_of(window, moves.to);
  EXPECT_EQ(evict({.pages = gpu.pages(1),
                   .layers = 2,
                   .sequence = 1,
                   .from = from.data(),
                   .to = to.data(),
                   .rows = static_cast<int32_t>(from.size()),
                   .rotation = turn.rotation()},
                  Stream{}),
            kSuccess);
  EXPECT_TRUE(gpu.is_intact());
  gpu.read_back();
}

// All rows of all live tokens, as stored.
std::vector<std::vector<float>> live_rows(const TestStream& stream, int64_t length) {
  std::vector<std::vector<float>> rows;
  const Window& window = stream.spec().window;
  for (int64_t i = 0; i < length; ++i) {
    if (i == window.sinks) i = window.first(length);
    for (int64_t h = 0; h < stream.spec().shape.kv_heads; ++h) {
      for (const Half half : {Half::kKeys, Half::kValues}) {
        rows.push_back(stored_row(stream.slot(i), stream.spec().shape, half, h));
      }
    }
  }
  return rows;
}

struct Case {
  int64_t head_dim;
  int64_t rotary_dim;
  Pairing pairing;
};
constexpr Case kCases[] = {
    {48, 48, Pairing::kHalf}, {80, 20, Pairing::kInterleaved}, {256, 256, Pairing::kInterleaved},
    {96, 6, Pairing::kHalf},  {512, 512, Pairing::kHalf},      {400, 40, Pairing::kInterleaved},
    {32, 0, Pairing::kHalf}};

TEST(CudaEvict, LeavesTheBitsThatTheReferenceLeaves) {
  constexpr int64_t kLength = 500;
  ThreadPool pool(2);
  for (const DType type : kGpuTypes) {
    for (const auto& [head_dim, rotary_dim, pairing] : kCases) {
      for (const auto& [older, distance] : {std::pair{1, 1}, {90, 3}, {40, 64}, {0, 9}}) {
        if (head_dim > 256 && older != 40) continue;  // slow
        StreamSpec spec = make_spec(4, 130, 2, 2, head_dim, type), other = spec;
        spec.rotary_dim = other.rotary_dim = rotary_dim;
        spec.pairing = other.pairing = pairing;
        other.seed = 9;
        const Moves moves = cut(spec.window.first(kLength), older, distance);
        const ShiftAngles turn(spec, distance);
        in_orders_of_run([&](const emulator::Order& order) {
          TestStream found[] = {{spec, reference_kernels()}, {other, reference_kernels()}};
          TestStream expected[] = {{spec, reference_kernels()}, {other, reference_kernels()}};
          for (int layer = 0; layer < 2; ++layer) {
            feed(&found[layer], kLength - 200, kLength, &pool);
            feed(&expected[layer], kLength - 200, kLength, &pool);
            evict_by_reference(&expected[layer], moves, turn);
          }
          evict_on_gpu({&found[0], &found[1]}, moves, turn);
          for (int layer = 0; layer < 2; ++layer) {
            const auto rows = live_rows(found[layer], kLength);
            const auto wanted = live_rows(expected[layer], kLength);
            for (size_t r = 0; r < rows.size(); ++r) {
              EXPECT_TRUE(same_bits(rows[r].data(), wanted[r].data(), head_dim))
                  << text_of(spec) << " row " << r << ", " << older << " by " << distance << " "
                  << order.name;
            }
          }
        });
      }
    }
  }
}

TEST(CudaEvict, KeepsNanAsNan) {
  ThreadPool pool(1);
  for (const DType type : kGpuTypes) {
    const StreamSpec spec = make_spec(4, 130, 2, 1, 32, type);
    TestStream stream(spec, reference_kernels()), other(spec, reference_kernels());
    feed(&stream, 0, 300, &pool);
    const int64_t first = spec.window.first(300);
    stream.poison(first + 1);
    evict_on_gpu({&stream, &other}, cut(first, 3, 10), ShiftAngles(spec, 10));
    for (const Half half : {Half::kKeys, Half::kValues}) {
      for (int64_t i = 0; i < 3; ++i) {
        for (const float x : stored_row(stream.slot(first + 10 + i), spec.shape, half, 0)) {
          EXPECT_EQ(std::isnan(x), i == 1) << name_of(type) << " token " << i;
        }
      }
    }
  }
}

TEST(CudaEvict, SaysThatALaunchFailed) {
  emulator::fail_next_launch(7);
  EXPECT_EQ(
      evict({.pages = {.shape = {1, 32, DType::kBFloat16}}, .layers = 1, .rotation = {}}, Stream{}),
      7);
}

}  // namespace
}  // namespace sinkstream::cuda
