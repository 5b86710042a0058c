#include "cache/page_pool.h"

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "common/check.h"

namespace sinkstream {

PagePool::PagePool(PageShape shape, int64_t pages, bool poison)
    : shape_(shape), memory_(pages * shape.bytes(), "the cache"), poison_(poison) {
  references_.assign(pages, 0);
  free_.reserve(pages);
  for (int64_t id = pages - 1; id >= 0; --id) free_.push_back(static_cast<int32_t>(id));
  if (poison_) std::memset(memory_.data(), 0xff, memory_.bytes());  // NaN in every type
}

int32_t PagePool::acquire() {
  SINKSTREAM_CHECK(!free_.empty(), "no page is free of ", pages());
  const int32_t id = free_.back();
  free_.pop_back();
  references_[id] = 1;
  return id;
}

void PagePool::share(int32_t id) {
  SINKSTREAM_CHECK(references_.at(id) > 0, "page ", id, " is free");
  if (++references_[id] == 2) ++shared_;
}

void PagePool::release(int32_t id) {
  SINKSTREAM_CHECK(references_.at(id) > 0, "page ", id, " is free already");
  if (--references_[id] == 1) --shared_;
  if (references_[id] > 0) return;
  if (poison_) std::memset(page(id), 0xff, shape_.bytes());
  free_.push_back(id);
}

bool poison_from_environment() {
  const char* value = std::getenv("SINKSTREAM_POISON_PAGES");
  return value != nullptr && std::string_view(value) != "" && std::string_view(value) != "0";
}

}  // namespace sinkstream
