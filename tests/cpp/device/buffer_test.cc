#include "device/buffer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

namespace sinkstream {
namespace {

constexpr int64_t kPage = 4096;

int64_t resident_pages(const Buffer& buffer) {
  std::vector<unsigned char> pages((buffer.bytes() + kPage - 1) / kPage);
  EXPECT_EQ(mincore(buffer.data(), buffer.bytes(), pages.data()), 0);
  return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
}

// Small and huge pages, complete and partial.
constexpr int64_t kSizes[] = {1, kPage, 3 * kPage + 5, 2 << 20, (9 << 20) + 4097};

TEST(Buffer, IsZeroAndResidentWithAnyNumberOfThreads) {
  for (const int threads : {0, 1, 3}) {
    ThreadPool pool(std::max(threads, 1));
    for (const int64_t bytes : kSizes) {
      const Buffer buffer(bytes, "a test", threads > 0 ? &pool : nullptr);
      ASSERT_EQ(buffer.bytes(), bytes);
      EXPECT_EQ(resident_pages(buffer), (bytes + kPage - 1) / kPage) << bytes << " bytes";
      const auto* begin = buffer.as<const char>();
      EXPECT_TRUE(std::all_of(begin, begin + bytes, [](char byte) { return byte == 0; }));
    }
  }
}

TEST(Buffer, ReservedIsZeroAndTakesNoMemoryBeforeItIsWritten) {
  for (const int64_t bytes : kSizes) {
    const Buffer buffer = Buffer::reserve(bytes, "a test");
    EXPECT_EQ(resident_pages(buffer), 0) << bytes << " bytes";
    EXPECT_EQ(buffer.as<char>()[bytes - 1], 0);
  }
}

// A huge page would make 512 small ones resident.
TEST(Buffer, SparseIsZeroAndResidentOnlyWhereItIsWritten) {
  for (const int64_t bytes : kSizes) {
    const Buffer buffer = Buffer::sparse(bytes, "a test");
    EXPECT_EQ(buffer.as<char>()[bytes - 1], 0);
    buffer.as<char>()[0] = 'x';
    buffer.as<char>()[bytes - 1] = 'x';
    EXPECT_EQ(resident_pages(buffer), bytes > kPage ? 2 : 1) << bytes << " bytes";
  }
}

TEST(Buffer, GivenBackIsZeroAgain) {
  Buffer buffer(5 * kPage, "a test");
  std::fill(buffer.as<char>(), buffer.as<char>() + buffer.bytes(), 'x');
  buffer.release();
  EXPECT_EQ(resident_pages(buffer), 0);
  EXPECT_EQ(buffer.as<char>()[4 * kPage], 0);
}

TEST(Buffer, OfNoBytesIsNothing) {
  ThreadPool pool(2);
  const Buffer buffer(0, "a test", &pool);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.bytes(), 0);
}

}  // namespace
}  // namespace sinkstream
