#include "model/weight_reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include "common/dtype.h"
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
  for (const int64_t rows : {1, 6, 7, 48, 1000, 6000}) {
    for (const int64_t gap : {0, 612, 5000}) {
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
  for (const int64_t rows : {1, 48}) {
    TestFile file;
    const auto [extents, bytes] = write_runs(&file, rows, 612);
    file.cut(bytes - 1);
    WeightStore store = allocated();
    WeightReader reader(&store, extents, 2);
    ASSERT_TRUE(reader.wait(kLong));
    ASSERT_TRUE(reader.unread());
    EXPECT_EQ(reader.unread()->weight, "output");
    EXPECT_EQ(reader.unread()->end, kVocab);
  }
}

// Rows of gate and up in turn have a few bytes each, or two.
TEST_F(WeightReaderTest, ReadsManyShortRunsWithACall) {
  const auto calls = [] {
    std::ifstream io("/proc/self/io");
    std::string name;
    int64_t count = 0;
    while (io >> name >> count && name != "syscr:") continue;
    return count;
  };
  TestFile file;
  const std::vector<WeightExtent> extents = write_runs(&file, 1, 612).first;
  WeightStore store = allocated();
  const int64_t before = calls();
  if (before == 0) GTEST_SKIP() << "the system does not count calls";
  WeightReader reader(&store, extents, 2);
  ASSERT_TRUE(reader.wait(kLong));
  EXPECT_LT(calls() - before, 200) << "for " << 2 * kVocab << " rows";
}

TEST_F(WeightReaderTest, AddsTheConstantOfAVectorInFloat32) {
  WeightStore store(spec_without_layers());
  for (const Shape& shape : kShapes) {
    const float added = shape.cols == 1 ? 1.0f : 0.0f;
    const WeightFile file = {.storage = shape.storage, .added = added};
    store.declare(shape.weight, file, shape.storage, shape.rows, shape.cols);
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
  const WeightFile file = {.storage = Storage::kF32, .added = 1.0f};
  EXPECT_THROW(store.declare("output", file, Storage::kF32, kVocab, kHidden), InternalError);
}

// A matrix whose tensor holds its columns has the panels of one whose tensor holds its rows,
// whether its columns adjoin or others' rows lie in between: all of them after its own, or in turn.
TEST_F(WeightReaderTest, ReadsATransposedTensor) {
  struct Case {
    Storage kept;
    int64_t rows, cols;
  };
  std::mt19937 random(7);
  for (const Storage stored : {Storage::kF32, Storage::kF16, Storage::kBF16}) {
    const int64_t size = row_of(stored).bytes;
    for (const auto& [kept, rows, cols] :
         {Case{stored, 1, 2}, Case{stored, 37, 41}, Case{stored, 1031, 576}, Case{stored, 16, 64},
          Case{Storage::kQ8_0, 1031, 576}, Case{Storage::kQ4_K, 1031, 768},
          Case{Storage::kIQ4_NL, 33, 96}}) {
      std::vector<std::byte> by_rows(rows * cols * size), by_columns(by_rows.size());
      for (int64_t i = 0; i < rows * cols; ++i) {
        const float number = static_cast<float>(static_cast<int>(random() % 255) - 127) / 64;
        const auto bits = stored == Storage::kF32   ? float_bits(number)
                          : stored == Storage::kF16 ? uint32_t{to_f16(number).bits}
                                                    : float_bits(number) >> 16;
        const int64_t row = i / cols, col = i % cols;
        std::memcpy(by_rows.data() + i * size, &bits, size);
        std::memcpy(by_columns.data() + (col * rows + row) * size, &bits, size);
      }
      WeightStore plain(spec_without_layers());
      plain.declare("output", {.storage = stored}, kept, rows, cols);
      plain.allocate();
      plain.write("output", by_rows.data(), std::ssize(by_rows), 0, rows);
      for (const int64_t run : {int64_t{0}, rows * size, size}) {
        const int64_t gap = run == 0 ? 0 : run == size ? size : rows * size + 6;
        std::vector<std::byte> bytes;
        for (int64_t at = 0; at < std::ssize(by_columns); at += run == 0 ? rows * size : run) {
          const auto begin = by_columns.begin() + at;
          bytes.insert(bytes.end(), begin, begin + (run == 0 ? rows * size : run));
          bytes.resize(bytes.size() + gap, std::byte{0x3f});
        }
        TestFile file;
        file.write(bytes, 9);
        WeightStore store(spec_without_layers());
        store.declare("output", {.storage = stored, .is_transposed = true}, kept, rows, cols);
        store.allocate();
        WeightReader reader(&store, {{"output", {{file.descriptor(), 9, run, run + gap}}}}, 2);
        ASSERT_TRUE(reader.wait(kLong));
        ASSERT_FALSE(reader.unread());
        EXPECT_EQ(reader.bytes_read(), std::ssize(by_columns));
        const PackedMatrix found = store.matrix("output"), expected = plain.matrix("output");
        EXPECT_EQ(
            std::memcmp(found.panels, expected.panels, packed_bytes(expected.type, rows, cols)), 0)
            << row_of(stored).name << " as " << row_of(kept).name << ", " << rows << " x " << cols
            << " in runs of " << run;
      }
    }
  }
}

TEST_F(WeightReaderTest, NamesATransposedRowWithANumberThatNoBlockHolds) {
  const float infinite = INFINITY;
  std::vector<std::byte> bytes(64 * 96 * 4);
  std::memcpy(bytes.data() + (95 * 64 + 17) * 4, &infinite, 4);
  TestFile file;
  file.write(bytes, 0);
  WeightStore store(spec_without_layers());
  store.declare("output", {.storage = Storage::kF32, .is_transposed = true}, Storage::kQ8_0, 64,
                96);
  store.allocate();
  WeightReader reader(&store, {{"output", {{file.descriptor(), 0}}}}, 2);
  try {
    reader.wait(kLong);
    FAIL() << "an infinite number was rounded";
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("but row 17 does not"), std::string::npos)
        << error.what();
  }
}

TEST_F(WeightReaderTest, RefusesTransposedBlocksAndVectors) {
  WeightStore store(spec_without_layers());
  for (const auto& [storage, cols] : {std::pair{Storage::kQ8_0, kHidden}, {Storage::kF32, 1l}}) {
    const WeightFile file = {.storage = storage, .is_transposed = true};
    EXPECT_THROW(store.declare("output", file, storage, kVocab, cols), InternalError);
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
