#include "cache/page_pool.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "common/check.h"

namespace sinkstream {

PagePool::PagePool(PageShape shape, int64_t pages, bool poison, ThreadPool* threads)
    : PagePool(shape, pages, std::make_unique<HostPages>(pages * shape.bytes(), threads), poison) {}

PagePool::PagePool(PageShape shape, int64_t pages, std::unique_ptr<PageMemory> memory, bool poison)
    : shape_(shape), memory_(std::move(memory)), poison_(poison) {
  SINKSTREAM_CHECK(memory_->bytes() >= pages * shape.bytes(), pages, " pages do not fit into ",
                   memory_->bytes(), " bytes");
  references_.assign(pages, 0);
  spare_.assign(pages, -1);
  free_.reserve(pages);
  for (int64_t id = pages - 1; id >= 0; --id) free_.push_back(static_cast<int32_t>(id));
  // On a GPU always: copying a page that is only partly written reads the rest, too, and tools that
  // check every access report that.
  if (poison_ || !memory_->is_host_memory()) memory_->poison(memory_->data(), memory_->bytes());
}

int32_t PagePool::acquire() {
  SINKSTREAM_CHECK(!free_.empty(), "none of the ", pages(), " pages is free");
  const int32_t id = free_.back();
  free_.pop_back();
  references_[id] = 1;
  return id;
}

void PagePool::share(int32_t id) {
  SINKSTREAM_CHECK(references_.at(id) > 0, "page ", id, " is free");
  if (++references_[id] == 2) ++shared_;
}

void PagePool::share_for_writing(int32_t id) {
  const int32_t spare = acquire();
  references_[spare] = 0;
  share(id);
  spare_[spare] = std::exchange(spare_[id], spare);
  ++spares_;
}

int32_t PagePool::copy(int32_t id) {
  const int32_t other = acquire();
  memory_->copy(page(other), page(id), shape_.bytes());
  return other;
}

int32_t PagePool::pop_spare(int32_t id) {
  const int32_t spare = spare_[id];
  if (spare < 0) return spare;
  spare_[id] = std::exchange(spare_[spare], -1);
  --spares_;
  return spare;
}

int32_t PagePool::own(int32_t id) {
  if (references_.at(id) == 1) return id;
  int32_t own = pop_spare(id);
  if (own < 0) own = acquire();
  references_[own] = 1;
  memory_->copy(page(own), page(id), shape_.bytes());
  drop_holder(id);
  return own;
}

void PagePool::release(int32_t id) {
  SINKSTREAM_CHECK(references_.at(id) > 0, "page ", id, " is already free");
  const int32_t spare = pop_spare(id);
  if (spare >= 0) return_page(spare);
  if (references_[id] == 1) return return_page(id);
  drop_holder(id);
}

void PagePool::drop_holder(int32_t id) {
  if (--references_[id] == 1) --shared_;
}

void PagePool::return_page(int32_t id) {
  references_[id] = 0;
  if (poison_) memory_->poison(page(id), shape_.bytes());
  free_.push_back(id);
}

bool poison_from_environment() {
  const char* value = std::getenv("SINKSTREAM_POISON_PAGES");
  return value != nullptr && std::string_view(value) != "" && std::string_view(value) != "0";
}

}  // namespace sinkstream
