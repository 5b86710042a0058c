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
  spec.block_of_layer.clear();
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

  // Writes the tensors to another file in runs of `rows` rows, with `gap` bytes between them.
  // Returns where they are, and the file's size.
  std::pair<std::vector<WeightExtent>, int64_t> write_runs(TestFile* file, int64_t rows,
                                                           int64_t gap) const {
    std::vector<WeightExtent> extents;
    int64_t offset = 5;
    for (size_t i = 0; i < std::size(kShapes); ++i) {
      const std::vector<std::byte>& bytes = tensors_[i];
      const int64_t run = rows * row_bytes_of(kShapes[i].storage, kShapes[i].cols);
      const auto total = static_cast<int64_t>(bytes.size());
      extents.push_back({kShapes[i].weight, {{file->descriptor(), offset, run, run + gap}}});
      for (int64_t at = 0; at < total; at += run) {
        const auto begin = bytes.begin() + at, end = bytes.begin() + std::min(at + run, total);
        std::vector<std::byte> written(begin, end);
        offset += static_cast<int64_t>(written.size());
        if (at + run < total) {
          written.resize(run + gap, std::byte{0x3f});
          offset += gap;
        }
        file->write(written, offset - static_cast<int64_t>(written.size()));
      }
    }
    return {extents, offset};
  }

  // The store with all tensors written.
  WeightStore written() const {
    WeightStore store = allocated();
    for (size_t i = 0; i < std::size(kShapes); ++i) {
      const auto bytes = static_cast<int64_t>(tensors_[i].size());
      store.write(kShapes[i].weight, tensors_[i].data(), bytes, 0, kShapes[i].rows);
    }
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

void expect_equal(const DecoderWeights& a, const DecoderWeights& b) {
  expect_equal(a.embedding, b.embedding);
  expect_equal(a.output, b.output);
  EXPECT_EQ(std::memcmp(a.final_norm.weight, b.final_norm.weight, kHidden * 4), 0);
}

TEST_F(WeightReaderTest, ReadsTheSameBitsWithAnyNumberOfThreads) {  // tsan
  const WeightStore plain = written();
  const DecoderWeights expected = plain.finish();
  for (const int threads : {1, 2, 5, 64}) {
    WeightStore store = allocated();
    WeightReader reader(&store, extents_, threads);
    ASSERT_TRUE(reader.wait(kLong));
    EXPECT_FALSE(reader.unread());
    EXPECT_EQ(reader.bytes_read(), total_);
    expect_equal(store.finish(), expected);
  }
}

// Runs that are shorter than a panel, that cross panels and pieces, and one run.
TEST_F(WeightReaderTest, ReadsRowsThatLieInRuns) {
  const WeightStore plain = written();
  const DecoderWeights expected = plain.finish();
  for (const int64_t rows : {1, 7, 48, 1000, 6000}) {
    for (const int64_t gap : {0, 612}) {
      TestFile file;
      const std::vector<WeightExtent> extents = write_runs(&file, rows, gap).first;
      for (const int threads : {1, 3}) {
        WeightStore store = allocated();
        WeightReader reader(&store, extents, threads);
        ASSERT_TRUE(reader.wait(kLong));
        EXPECT_FALSE(reader.unread());
        EXPECT_EQ(reader.bytes_read(), total_);
        SCOPED_TRACE(cat(rows, " rows, ", gap, " bytes between"));
        expect_equal(store.finish(), expected);
      }
    }
  }
}

TEST_F(WeightReaderTest, NamesTheRowsOfTheRunThatAShorterFileLacks) {
  TestFile file;
  const auto [extents, bytes] = write_runs(&file, 48, 612);
  file.cut(bytes - 1);
  WeightStore store = allocated();
  WeightReader reader(&store, extents, 2);
  ASSERT_TRUE(reader.wait(kLong));
  ASSERT_TRUE(reader.unread());
  EXPECT_EQ(reader.unread()->weight, "output");
  EXPECT_EQ(reader.unread()->end, kVocab);
}

TEST_F(WeightReaderTest, AddsTheConstantOfAVectorInFloat32) {
  WeightStore store(spec_without_layers());
  for (const Shape& shape : kShapes) {
    const float added = shape.cols == 1 ? 1.0f : 0.0f;
    store.declare(shape.weight, shape.storage, shape.storage, shape.rows, shape.cols, added);
  }
  store.allocate();
  WeightReader reader(&store, extents_, 2);
  ASSERT_TRUE(reader.wait(kLong));
  const WeightStore plain = written();
  const float* found = store.finish().final_norm.weight;
  const float* weight = plain.finish().final_norm.weight;
  for (int64_t i = 0; i < kHidden; ++i) EXPECT_EQ(found[i], weight[i] + 1.0f) << i;
}

TEST_F(WeightReaderTest, RefusesAConstantForAMatrix) {
  WeightStore store(spec_without_layers());
  EXPECT_THROW(store.declare("output", Storage::kF32, Storage::kF32, kVocab, kHidden, 1.0f),
               InternalError);
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
