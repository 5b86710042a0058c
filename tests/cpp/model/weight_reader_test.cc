#include "model/weight_reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <random>

#include "common/errors.h"
#include "model/random_weights.h"

namespace sinkstream {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLong{100'000};

// An unnamed file that is written by position.
class TestFile {
 public:
  TestFile() : file_(std::tmpfile()) {}
  ~TestFile() { std::fclose(file_); }
  int descriptor() const { return fileno(file_); }
  void write(const std::vector<std::byte>& bytes, int64_t offset) {
    ASSERT_EQ(pwrite(descriptor(), bytes.data(), bytes.size(), offset),
              static_cast<ssize_t>(bytes.size()));
  }
  void cut(int64_t bytes) { ASSERT_EQ(ftruncate(descriptor(), bytes), 0); }

 private:
  std::FILE* file_;
};

struct Shape {
  const char* weight;
  Storage storage;
  int64_t rows, cols;
};

// All weights of a decoder without layers: some of several pieces, whose last panel is cut short,
// and a vector.
constexpr int64_t kVocab = 5003, kHidden = 576;
constexpr Shape kShapes[] = {
    {"embedding", Storage::kQ8_0, kVocab, kHidden},
    {"final_norm", Storage::kBF16, kHidden, 1},
    {"output", Storage::kQ4_1, kVocab, kHidden},
};

DecoderSpec spec_without_layers() {
  DecoderSpec spec = small_spec();
  spec.vocab_size = kVocab;
  spec.hidden_size = kHidden;
  spec.layers = 0;
  return spec;
}

// The tensors of kShapes one after the other in a file, last first.
class WeightReaderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::mt19937 random(5);
    int64_t offset = 11;
    for (int i = std::size(kShapes) - 1; i >= 0; --i) {
      const Shape& shape = kShapes[i];
      std::vector<std::byte> bytes(shape.rows * row_bytes_of(shape.storage, shape.cols));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0xbf);  // finite
      file_.write(bytes, offset);
      extents_.push_back({shape.weight, {{file_.descriptor(), offset}}});
      offset += static_cast<int64_t>(bytes.size());
      total_ += static_cast<int64_t>(bytes.size());
      tensors_.insert(tensors_.begin(), std::move(bytes));
    }
    end_ = offset;
  }

  static WeightStore allocated() {
    WeightStore store(spec_without_layers());
    for (const Shape& shape : kShapes) {
      store.declare(shape.weight, shape.storage, shape.rows, shape.cols);
    }
    store.allocate();
    return store;
  }

  TestFile file_;
  std::vector<WeightExtent> extents_;
  std::vector<std::vector<std::byte>> tensors_;  // of kShapes
  int64_t total_ = 0, end_ = 0;
};

void expect_equal(const PackedMatrix& a, const PackedMatrix& b) {
  const int64_t bytes = packed_bytes(a.type, a.rows, a.cols);
  EXPECT_EQ(std::memcmp(a.panels, b.panels, bytes), 0);
}

TEST_F(WeightReaderTest, ReadsTheSameBitsWithAnyNumberOfThreads) {  // tsan
  WeightStore plain = allocated();
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    const auto bytes = static_cast<int64_t>(tensors_[i].size());
    plain.write(kShapes[i].weight, tensors_[i].data(), bytes, 0, kShapes[i].rows);
  }
  const DecoderWeights expected = plain.finish();
  for (const int threads : {1, 2, 5, 64}) {
    WeightStore store = allocated();
    WeightReader reader(&store, extents_, threads);
    ASSERT_TRUE(reader.wait(kLong));
    EXPECT_FALSE(reader.unread());
    EXPECT_EQ(reader.bytes_read(), total_);
    const DecoderWeights found = store.finish();
    expect_equal(found.embedding, expected.embedding);
    expect_equal(found.output, expected.output);
    EXPECT_EQ(std::memcmp(found.final_norm, expected.final_norm, kHidden * 4), 0);
  }
}

TEST_F(WeightReaderTest, NamesTheRowsThatAShorterFileLacks) {
  file_.cut(end_ - 1);
  for (const int threads : {1, 3}) {
    WeightStore store = allocated();
    WeightReader reader(&store, extents_, threads);
    ASSERT_TRUE(reader.wait(kLong));
    ASSERT_TRUE(reader.unread());
    EXPECT_EQ(reader.unread()->weight, "embedding");
    EXPECT_EQ(reader.unread()->end, kVocab);
    EXPECT_LT(reader.bytes_read(), total_);
  }
}

TEST_F(WeightReaderTest, NamesTheRowsThatAClosedFileLacks) {
  WeightStore store = allocated();
  extents_.back().tensors[0].descriptor = -1;
  WeightReader reader(&store, extents_, 2);
  ASSERT_TRUE(reader.wait(kLong));
  ASSERT_TRUE(reader.unread());
  EXPECT_EQ(reader.unread()->weight, "embedding");
}

TEST_F(WeightReaderTest, StopsEarlyWhenItIsDestroyed) {
  constexpr int64_t kRows = int64_t{1} << 24;
  DecoderSpec spec = spec_without_layers();
  spec.vocab_size = kRows;
  spec.hidden_size = 16;
  WeightStore store(spec);
  store.declare("embedding", Storage::kF32, kRows, 16);  // 1 GiB, which takes long to read
  store.allocate();
  file_.cut(kRows * 64);
  {
    WeightReader reader(&store, {{"embedding", {{file_.descriptor(), 0}}}}, 1);
    EXPECT_FALSE(reader.wait(milliseconds(0)));
  }
  EXPECT_THROW(store.finish(), InternalError);  // rows are missing
}

}  // namespace
}  // namespace sinkstream
