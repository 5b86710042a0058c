#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "common/errors.h"

namespace sinkstream {
namespace {

constexpr PageShape kShape{2, 8, DType::kFloat32};

TEST(PagePool, LendsEveryPageOnceAndTakesThemBack) {
  PagePool pool(kShape, 5);
  std::set<int32_t> lent;
  for (int i = 0; i < 5; ++i) lent.insert(pool.acquire());
  EXPECT_EQ(lent.size(), 5u);
  EXPECT_EQ(pool.free_pages(), 0);
  EXPECT_THROW(pool.acquire(), InternalError);
  for (const int32_t id : lent) pool.release(id);
  EXPECT_EQ(pool.free_pages(), 5);
}

TEST(PagePool, KeepsASharedPageUntilItsLastHolderLeaves) {
  PagePool pool(kShape, 1);
  const int32_t id = pool.acquire();
  EXPECT_EQ(pool.shared_pages(), 0);
  pool.share(id);
  EXPECT_EQ(pool.shared_pages(), 1);
  pool.share(id);
  EXPECT_EQ(pool.shared_pages(), 1) << "one page, whatever the number of holders";
  pool.release(id);
  EXPECT_EQ(pool.shared_pages(), 1);
  pool.release(id);
  EXPECT_EQ(pool.shared_pages(), 0);
  EXPECT_EQ(pool.free_pages(), 0);
  pool.release(id);
  EXPECT_EQ(pool.free_pages(), 1);
  EXPECT_THROW(pool.release(id), InternalError);
  EXPECT_THROW(pool.share(id), InternalError);
}

TEST(PagePool, EveryHolderOfAPageSharedForWritingCanHaveItsOwn) {
  PagePool pool(kShape, 4);
  const int32_t id = pool.acquire();
  std::memset(pool.page(id), 7, kShape.bytes());
  pool.share_for_writing(id);
  pool.share_for_writing(id);
  EXPECT_EQ(pool.holders(id), 3);
  EXPECT_EQ(pool.free_pages(), 1) << "one spare fewer than holders";

  const int32_t first = pool.own(id), second = pool.own(id), third = pool.own(id);
  EXPECT_EQ(pool.free_pages(), 1);
  EXPECT_EQ(third, id) << "the last one keeps the page";
  EXPECT_NE(first, second);
  for (const int32_t own : {first, second, third}) {
    EXPECT_EQ(pool.holders(own), 1);
    EXPECT_EQ(std::memcmp(pool.page(own), pool.page(id), kShape.bytes()), 0);
    EXPECT_FALSE(pool.has_spare(own));
  }
  for (const int32_t own : {first, second, third}) pool.release(own);
  EXPECT_EQ(pool.free_pages(), 4);
}

TEST(PagePool, AHolderThatLeavesTakesASpareWithIt) {
  PagePool pool(kShape, 4);
  const int32_t id = pool.acquire();
  pool.share_for_writing(id);
  pool.share_for_writing(id);
  pool.release(id);
  EXPECT_EQ(pool.free_pages(), 2);
  EXPECT_TRUE(pool.has_spare(id));
  pool.release(id);
  EXPECT_EQ(pool.free_pages(), 3);
  EXPECT_FALSE(pool.has_spare(id));
  EXPECT_EQ(pool.own(id), id);
  pool.release(id);
  EXPECT_EQ(pool.free_pages(), 4);
}

TEST(PagePool, APageWithoutSpareIsCopiedToAFreeOneOrNotAtAll) {
  PagePool pool(kShape, 2);
  const int32_t id = pool.acquire();
  pool.share(id);
  const int32_t copy = pool.own(id);
  EXPECT_NE(copy, id);
  EXPECT_EQ(pool.holders(id), 1);
  pool.share(id);
  EXPECT_THROW(pool.own(id), InternalError);
  EXPECT_EQ(pool.holders(id), 2) << "a failure changes nothing";
  EXPECT_THROW(pool.share_for_writing(id), InternalError);
  EXPECT_EQ(pool.holders(id), 2);
}

TEST(PagePool, PagesDoNotOverlap) {
  PagePool pool(kShape, 4);
  for (int32_t a = 0; a < 4; ++a) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pool.page(a)) % 64, 0u);
    for (int32_t b = 0; b < a; ++b) EXPECT_GE(pool.page(a) - pool.page(b), kShape.bytes());
  }
  EXPECT_EQ(pool.bytes(), 4 * kShape.bytes());
}

TEST(PagePool, PoisonedPagesHoldNaNBeforeAndAfterUse) {
  PagePool pool(kShape, 1, true);
  const int32_t id = pool.acquire();
  auto* numbers = reinterpret_cast<float*>(pool.page(id));
  const int64_t count = kShape.bytes() / 4;
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_TRUE(std::isnan(numbers[i]));
    numbers[i] = 1;
  }
  pool.release(id);
  for (int64_t i = 0; i < count; ++i) ASSERT_TRUE(std::isnan(numbers[i]));
}

}  // namespace
}  // namespace sinkstream
