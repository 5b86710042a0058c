#include "cache/snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/errors.h"

namespace sinkstream {
namespace {

constexpr int64_t kLayers = 2;
constexpr int64_t kEndless = int64_t{1} << 60;
constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8};

PageShape shape_of(DType type) { return {2, 6, type}; }

// The bits of one number of a token or, if `dim` is negative, of its scale.
uint32_t bits_at(const SequenceCache& cache, int64_t layer, int64_t token, int64_t half,
                 int64_t head, int64_t dim) {
  const PageShape& shape = cache.group_of(layer).shape();
  const Slot at = cache.slot(layer, token);
  const std::byte* from = at.page + (half == 0 ? shape.key_offset(head) : shape.value_offset(head));
  uint32_t bits = 0;
  if (dim < 0) {
    std::memcpy(&bits, from + shape.scale_offset(at.row), sizeof(float));
    return bits;
  }
  const int64_t element =
      half == 0 ? shape.key_element(at.row, dim) : shape.value_element(at.row, dim);
  const int64_t bytes = bytes_of(shape.type);
  std::memcpy(&bits, from + element * bytes, bytes);
  return bits;
}

// Fills the rows of a token with random bits.
void write_token(SequenceCache* cache, int64_t token, std::mt19937* random) {
  for (int64_t layer = 0; layer < cache->layers(); ++layer) {
    const PageShape& shape = cache->group_of(layer).shape();
    const int64_t bytes = bytes_of(shape.type);
    const Slot at = cache->slot(layer, token);
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      for (int64_t half = 0; half < 2; ++half) {
        std::byte* to = at.page + (half == 0 ? shape.key_offset(head) : shape.value_offset(head));
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          const uint32_t bits = (*random)();
          const int64_t element =
              half == 0 ? shape.key_element(at.row, d) : shape.value_element(at.row, d);
          std::memcpy(to + element * bytes, &bits, bytes);
        }
        const uint32_t bits = (*random)();
        if (shape.has_scales()) std::memcpy(to + shape.scale_offset(at.row), &bits, sizeof(float));
      }
    }
  }
}

void append(SequenceCache* cache, int64_t count, std::mt19937* random) {
  for (int64_t i = 0; i < count; ++i) {
    write_token(cache, cache->length(), random);
    cache->advance(1);
  }
}

std::vector<int64_t> live_tokens(const SequenceCache& cache) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < std::min(cache.window().sinks, cache.length()); ++i) tokens.push_back(i);
  for (int64_t i = cache.window().first(cache.length() - 1); i < cache.length(); ++i) {
    tokens.push_back(i);
  }
  return tokens;
}

struct Copied {
  explicit Copied(const SequenceCache& cache)
      : shape(snapshot_shape(cache)),
        state(state_of(cache)),
        keys_values(shape.bytes()),
        scales(shape.scale_bytes() / sizeof(float)) {
    snapshot(cache, keys_values.data(), scales.data());
  }
  SnapshotShape shape;
  SequenceState state;
  std::vector<std::byte> keys_values;
  std::vector<float> scales;
};

struct Pooled {
  Pooled(const Window& window, DType type, int64_t max_length = kEndless)
      : pool(shape_of(type), SequenceCache::memory_needed(window, kLayers, max_length).pages[0],
             true),
        cache(&pool, window, kLayers, max_length) {}
  PagePool pool;
  SequenceCache cache;
};

// The snapshot has what the pages held, number by number.
void expect_plain(const SequenceCache& cache, const Copied& copied) {
  const PageShape& shape = cache.group(0).shape();
  const auto tokens = live_tokens(cache);
  const auto live = static_cast<int64_t>(tokens.size());
  ASSERT_EQ(copied.shape.groups.size(), 1u);
  ASSERT_EQ(copied.shape.groups[0].live, live);
  ASSERT_EQ(copied.shape.bytes(),
            kLayers * 2 * shape.kv_heads * live * shape.head_dim * bytes_of(shape.type));
  size_t row = 0;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (int64_t half = 0; half < 2; ++half) {
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        for (const int64_t token : tokens) {
          for (int64_t d = 0; d < shape.head_dim; ++d) {
            uint32_t bits = 0;
            const int64_t bytes = bytes_of(shape.type);
            std::memcpy(&bits, copied.keys_values.data() + (row * shape.head_dim + d) * bytes,
                        bytes);
            ASSERT_EQ(bits, bits_at(cache, layer, token, half, head, d))
                << name_of(shape.type) << " layer " << layer << " half " << half << " head " << head
                << " token " << token << " of " << cache.length();
          }
          if (shape.has_scales()) {
            uint32_t bits = 0;
            std::memcpy(&bits, &copied.scales[row], sizeof(bits));
            ASSERT_EQ(bits, bits_at(cache, layer, token, half, head, -1));
          }
          ++row;
        }
      }
    }
  }
}

// Where the window of a cache begins after a cut; 0 if that evicts nothing.
int64_t begin_of(const SequenceCache& cache) {
  const Window& window = cache.window();
  return window.begin <= std::max(window.sinks, cache.length() - window.window) ? 0 : window.begin;
}

// Both caches have the same live tokens, with the same bits in the same rows.
void expect_same_tokens(const SequenceCache& expected, const SequenceCache& cache) {
  ASSERT_EQ(cache.length(), expected.length());
  ASSERT_EQ(begin_of(cache), begin_of(expected));
  for (const int64_t token : live_tokens(expected)) {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      ASSERT_EQ(cache.slot(layer, token).row, expected.slot(layer, token).row);
      for (int64_t half = 0; half < 2; ++half) {
        for (int64_t head = 0; head < cache.group(0).shape().kv_heads; ++head) {
          for (int64_t d = cache.group(0).shape().has_scales() ? -1 : 0;
               d < cache.group(0).shape().head_dim; ++d) {
            ASSERT_EQ(bits_at(cache, layer, token, half, head, d),
                      bits_at(expected, layer, token, half, head, d))
                << "token " << token << " of " << cache.length();
          }
        }
      }
    }
  }
}

// How many bytes of the sequence's pages differ from a fresh, poisoned page.
int64_t written_bytes(const SequenceCache& cache) {
  int64_t written = 0;
  const auto count = [&](const std::byte* page) {
    for (int64_t i = 0; i < cache.group(0).shape().bytes(); ++i)
      written += page[i] != std::byte{0xff};
  };
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (int64_t p = 0; p < cache.group_of(layer).sink_page_count; ++p)
      count(cache.sink_pages(layer)[p]);
    for (int64_t p = 0; p < cache.group_of(layer).window_page_count; ++p) {
      count(cache.window_pages(layer)[p]);
    }
  }
  return written;
}

// Restores a sequence into a fresh cache and continues both.
void expect_round_trip(Pooled* original) {
  const Copied copied(original->cache);
  expect_plain(original->cache, copied);
  Window window = original->cache.window();
  window.begin = 0;
  Pooled other(window, original->cache.group(0).shape().type, original->cache.max_length());
  restore(&other.cache, copied.state, copied.keys_values.data(), copied.scales.data());
  expect_same_tokens(original->cache, other.cache);
  EXPECT_LE(written_bytes(other.cache), copied.shape.bytes() + copied.shape.scale_bytes());
  std::mt19937 one(5), two(5);
  append(&original->cache, 70, &one);
  append(&other.cache, 70, &two);
  expect_same_tokens(original->cache, other.cache);
}

class SnapshotOfType : public testing::TestWithParam<DType> {};

TEST_P(SnapshotOfType, RestoresEveryBitAtEveryLength) {
  std::mt19937 random(1);
  for (const int64_t sinks : {0, 1, 4, 63, 64, 65, 70}) {
    for (const int64_t width : {1, 2, 63, 64, 65, 129}) {
      const Window window{sinks, width};
      const int64_t full = window.capacity();
      for (const int64_t length : {int64_t{0}, int64_t{1}, sinks, sinks + 1, full - 1, full,
                                   full + 1, full + 64, 3 * full + 40}) {
        Pooled original(window, GetParam());
        append(&original.cache, length, &random);
        expect_round_trip(&original);
        if (HasFatalFailure()) FAIL() << "S " << sinks << " W " << width << " length " << length;
      }
    }
  }
}

TEST_P(SnapshotOfType, RestoresEverySinkCount) {
  std::mt19937 random(2);
  for (int64_t sinks = 0; sinks <= 70; ++sinks) {
    Pooled original(Window{sinks, 60 + sinks % 9}, GetParam());
    append(&original.cache, 200, &random);
    expect_round_trip(&original);
    if (HasFatalFailure()) FAIL() << "S " << sinks;
  }
}

TEST_P(SnapshotOfType, RestoresWhatACutHasLeft) {
  std::mt19937 random(3);
  for (const int64_t length : {40, 100, 300}) {
    for (const int64_t room : {1, 30, 69}) {
      Pooled original(Window{5, 70}, GetParam());
      append(&original.cache, length, &random);
      original.cache.evict_for_space(room);
      expect_round_trip(&original);
      append(&original.cache, 10, &random);  // more than the cut's tokens, less than a window
      expect_round_trip(&original);
      if (HasFatalFailure()) FAIL() << "length " << length << " room " << room;
    }
  }
}

TEST_P(SnapshotOfType, HasNoCutIfAllButTheSinksIsReadAgain) {
  std::mt19937 random(3);
  for (const int64_t sinks : {0, 5, 64}) {
    Pooled original(Window{sinks, 70}, GetParam());
    append(&original.cache, sinks + 100, &random);
    ASSERT_TRUE(original.cache.restart_at(sinks));
    append(&original.cache, 20, &random);  // less than a window
    EXPECT_EQ(state_of(original.cache).begins, std::vector<int64_t>{0});
    expect_round_trip(&original);
    if (HasFatalFailure()) FAIL() << "S " << sinks;
  }
}

// Memory that the host cannot access by address, like a GPU's.
class FarPages : public PageMemory {
 public:
  explicit FarPages(int64_t bytes) : bytes_(bytes) {}
  std::byte* data() const override { return reinterpret_cast<std::byte*>(kFar); }
  int64_t bytes() const override { return std::ssize(bytes_); }
  bool is_host_memory() const override { return false; }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    std::memcpy(near(to), near(from), bytes);
  }
  void fill(std::byte* at, uint8_t value, int64_t bytes) override {
    std::memset(near(at), value, bytes);
  }
  void read(std::byte* to_host, const std::byte* from, int64_t bytes) override {
    std::memcpy(to_host, near(from), bytes);
  }
  void write(std::byte* to, const std::byte* from_host, int64_t bytes) override {
    std::memcpy(near(to), from_host, bytes);
  }
  void release() override {}

 private:
  static constexpr uintptr_t kFar = 4096;  // nothing is mapped there
  std::byte* near(const std::byte* far) {
    return bytes_.data() + (reinterpret_cast<uintptr_t>(far) - kFar);
  }
  std::vector<std::byte> bytes_;
};

TEST_P(SnapshotOfType, MovesBetweenAProcessorAndAGpu) {
  std::mt19937 random(6);
  for (const int64_t sinks : {0, 4, 65}) {
    for (const int64_t length : {1, 40, 66, 300}) {
      const Window window{sinks, 70};
      Pooled original(window, GetParam());
      append(&original.cache, length, &random);
      const Copied copied(original.cache);

      PageShape shape = shape_of(GetParam());
      shape.layout = PageLayout::kRows;
      const int64_t pages = SequenceCache::memory_needed(window, kLayers, kEndless).pages[0];
      PagePool pool(shape, 2 * pages, std::make_unique<FarPages>(2 * pages * shape.bytes()), true);
      SequenceCache there(&pool, window, kLayers, kEndless);
      restore(&there, copied.state, copied.keys_values.data(), copied.scales.data());
      SequenceCache fork(there, kEndless, there.length());
      there.make_writable(70);  // the fork keeps the pages; this one has copies
      for (const SequenceCache* one : {&there, &fork}) {
        const Copied back(*one);
        EXPECT_EQ(back.keys_values, copied.keys_values) << "S " << sinks << " length " << length;
        EXPECT_TRUE(std::ranges::equal(back.scales, copied.scales, {}, float_bits, float_bits));
      }
    }
  }
}

TEST_P(SnapshotOfType, RestoresAStreamOfTenMillionTokens) {
  std::mt19937 random(4);
  for (const int64_t sinks : {0, 3, 66}) {
    for (const int64_t more : {0, 1, 69, 70, 500}) {
      Pooled original(Window{sinks, 70}, GetParam());
      append(&original.cache, sinks, &random);
      original.cache.jump(10'000'000);
      append(&original.cache, more, &random);
      expect_round_trip(&original);
      if (HasFatalFailure()) FAIL() << "S " << sinks << " and " << more << " tokens";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SnapshotOfType, testing::ValuesIn(kTypes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// Each group has numbers of its own size: the second one's begin where the first one's end.
TEST_P(SnapshotOfType, RestoresLayersWhosePagesDifferInShape) {
  std::mt19937 random(10);
  const PageShape shapes[] = {{2, 6, GetParam()}, {1, 10, GetParam()}};
  const CacheLayers layers(std::vector<LayerMemory>{{.own_window = 20, .page = shapes[0]},
                                                    {.page = shapes[1]},
                                                    {.own_window = 20, .page = shapes[0]}});
  const Window window{4, 70};
  const MemoryAmount needed = SequenceCache::memory_needed(window, layers, kEndless);
  for (const int64_t length : {1, 30, 200}) {
    PagePool first(shapes[0], 2 * needed.pages[0], true),
        second(shapes[1], 2 * needed.pages[1], true);
    MemoryPools pools;
    pools.pages = {&first, &second};
    SequenceCache original(pools, window, layers, kEndless);
    append(&original, length, &random);
    const Copied copied(original);
    ASSERT_EQ(copied.shape.groups.size(), 2u);
    EXPECT_EQ(copied.shape.groups[0].rows(), 2 * 2 * 2 * std::min<int64_t>(length, 20));
    EXPECT_EQ(copied.shape.groups[1].rows(), 2 * std::min<int64_t>(length, 74));
    SequenceCache other(pools, window, layers, kEndless);
    restore(&other, copied.state, copied.keys_values.data(), copied.scales.data());
    const Copied again(other);
    EXPECT_EQ(again.keys_values, copied.keys_values) << length;
    EXPECT_TRUE(std::ranges::equal(again.scales, copied.scales, {}, float_bits, float_bits));
    for (int64_t layer = 0; layer < 3; ++layer) {
      for (int64_t d = 0; d < original.group_of(layer).shape().head_dim; ++d) {
        EXPECT_EQ(bits_at(other, layer, length - 1, 1, 0, d),
                  bits_at(original, layer, length - 1, 1, 0, d));
      }
    }
  }
}

TEST(Snapshot, MovesToASequenceThatMayGrowLonger) {
  const Window window{4, 1000};
  std::mt19937 random(6), again(7), and_again(7);
  Pooled original(window, DType::kFloat16, 150);  // a ring of 3 pages
  append(&original.cache, 130, &random);
  const Copied copied(original.cache);
  Pooled longer(window, DType::kFloat16);
  ASSERT_NE(longer.cache.group(0).window_page_count, original.cache.group(0).window_page_count);
  restore(&longer.cache, copied.state, copied.keys_values.data(), nullptr);
  expect_same_tokens(original.cache, longer.cache);
  append(&original.cache, 20, &again);
  append(&longer.cache, 20, &and_again);
  expect_same_tokens(original.cache, longer.cache);
}

// A token that the next query does not see still counts as live; a pool that poisons sets it to
// NaN.
TEST(Snapshot, LeavesWhatTheNextTokenDoesNotSeeNaN) {
  const Window window{2, 70};
  PagePool plain(shape_of(DType::kFloat32),
                 SequenceCache::memory_needed(window, kLayers, kEndless).pages[0]);
  SequenceCache original(&plain, window, kLayers, kEndless);
  std::mt19937 random(8);
  append(&original, 100, &random);
  const Copied copied(original);
  Pooled poisoned(window, DType::kFloat32);
  restore(&poisoned.cache, copied.state, copied.keys_values.data(), nullptr);
  EXPECT_EQ(bits_at(poisoned.cache, 0, 100 - 70, 0, 0, 0), 0xffffffffu);
  EXPECT_EQ(bits_at(poisoned.cache, 0, 100 - 69, 0, 0, 0), bits_at(original, 0, 100 - 69, 0, 0, 0));
}

TEST(Snapshot, HasTheSizesThatItsShapeSays) {
  const auto shape_in = [](DType type) {
    return SnapshotShape{{{.layers = 3, .kv_heads = 2, .head_dim = 8, .live = 10}}, type};
  };
  const SnapshotShape shape = shape_in(DType::kInt8);
  EXPECT_EQ(shape.bytes(), 3 * 2 * 2 * 10 * 8);
  EXPECT_EQ(shape.scale_bytes(), 3 * 2 * 2 * 10 * 4);
  EXPECT_EQ(shape_in(DType::kBFloat16).bytes(), 3 * 2 * 2 * 10 * 8 * 2);
  EXPECT_EQ(shape_in(DType::kBFloat16).scale_bytes(), 0);
}

TEST(Snapshot, IsRestoredOnceAndWithinTheSequence) {
  const Window window{2, 10};
  std::mt19937 random(9);
  Pooled original(window, DType::kFloat16);
  append(&original.cache, 20, &random);
  const Copied copied(original.cache);
  const auto put = [&](SequenceCache* cache, SequenceState state) {
    restore(cache, state, copied.keys_values.data(), nullptr);
  };
  EXPECT_THROW(put(&original.cache, copied.state), InternalError);  // it has tokens
  Pooled shorter(window, DType::kFloat16, 19);
  EXPECT_THROW(put(&shorter.cache, copied.state), InternalError);
  Pooled other(window, DType::kFloat16);
  EXPECT_THROW(put(&other.cache, {20, {21}}), InternalError);
  EXPECT_THROW(put(&other.cache, {20, {-1}}), InternalError);
  EXPECT_THROW(put(&other.cache, {-1, {0}}), InternalError);
  EXPECT_THROW(put(&other.cache, {20, {0, 0}}), InternalError);  // another number of groups
  EXPECT_EQ(other.cache.length(), 0);
  put(&other.cache, copied.state);
  EXPECT_EQ(other.cache.length(), 20);
}

}  // namespace
}  // namespace sinkstream
