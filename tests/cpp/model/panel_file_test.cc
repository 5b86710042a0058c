#include "model/panel_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "common/digest.h"
#include "kernels/pack.h"
#include "model/random_weights.h"

namespace sinkstream {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLong{100'000};
const std::string kKey(kPanelKeyBytes, 'k');

// A folder for one file, and a store with weights of several pieces.
class PanelFileTest : public testing::Test {
 protected:
  PanelFileTest() : weights_(spec()) {
    char name[] = "/tmp/panelsXXXXXX";
    folder_ = mkdtemp(name);
    target_.path = folder_ + "/file";
    target_.mark = folder_ + "/mark";
    target_.part = folder_ + "/part";
    target_.key = kKey;
    target_.label = "a label";
    open_part();
  }
  ~PanelFileTest() override {
    close(target_.descriptor);
    for (const std::string& path : {target_.path, target_.mark, target_.part}) {
      unlink(path.c_str());
    }
    rmdir(folder_.c_str());
  }

  static DecoderSpec spec() {
    DecoderSpec spec = small_spec();
    spec.vocab_size = 70'001;  // an embedding of 18 MB
    return spec;
  }
  static DecoderSpec other_spec() {
    DecoderSpec spec = PanelFileTest::spec();
    spec.vocab_size = 16;
    return spec;
  }

  void open_part() {
    if (target_.descriptor >= 0) close(target_.descriptor);
    target_.descriptor = open(target_.part.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  }
  int write() {
    std::atomic<bool> is_stopped{false};
    std::atomic<int64_t> written{0};
    EXPECT_EQ(reserve_panel_file(weights_.store, target_), 0);
    return write_panel_file(weights_.store, target_, is_stopped, &written);
  }

  // Declares what `weights_` has.
  static WeightStore empty_store(const DecoderSpec& spec) {
    WeightStore store(spec);
    DecoderWeights unused;
    for (const WeightSlot& slot : weight_slots(spec, &unused)) {
      store.declare(slot.name, Storage::kF32, slot.rows, slot.cols);
    }
    return store;
  }
  // What reading the file into a store has come to: its digest, a refusal, or a damaged weight.
  std::string read(WeightStore store, const std::string& key = kKey) {
    const int descriptor = open(target_.path.c_str(), O_RDONLY);
    PanelReader reader(&store, descriptor, key, target_.mark, 2);
    close(descriptor);
    if (!reader.refusal().empty()) {
      EXPECT_EQ(store.bytes(), 0);
      return reader.refusal();
    }
    EXPECT_TRUE(reader.wait(kLong));
    if (!reader.damaged()) {
      EXPECT_EQ(store.memory()->bytes_from_file(), store.bytes());
      EXPECT_EQ(reader.bytes_read(), reader.bytes_to_read());
      return store.digest();
    }
    EXPECT_EQ(store.bytes(), 0);  // and can be filled from the model
    store.allocate();
    return "damaged: " + *reader.damaged();
  }
  std::string read() { return read(empty_store(spec())); }

  void put(int64_t at, char byte) {
    ASSERT_EQ(chmod(target_.path.c_str(), 0600), 0);
    const int descriptor = open(target_.path.c_str(), O_RDWR);
    ASSERT_EQ(pwrite(descriptor, &byte, 1, at), 1);
    close(descriptor);
  }
  int64_t size() const {
    struct stat status {};
    return stat(target_.path.c_str(), &status) == 0 ? status.st_size : -1;
  }

  RandomWeights weights_;
  std::string folder_;
  PanelTarget target_;
};

TEST_F(PanelFileTest, GivesAStoreTheSameBits) {
  ASSERT_EQ(write(), 0);
  EXPECT_EQ(access(target_.part.c_str(), F_OK), -1);
  EXPECT_EQ(access(target_.mark.c_str(), F_OK), 0);
  EXPECT_EQ(read(), weights_.store.digest());
  unlink(target_.mark.c_str());
  EXPECT_EQ(read(), weights_.store.digest());
  EXPECT_EQ(access(target_.mark.c_str(), F_OK), 0);  // compared, and marked again
}

TEST_F(PanelFileTest, OfAnotherStoreIsRefused) {
  ASSERT_EQ(write(), 0);
  EXPECT_EQ(read(empty_store(spec()), std::string(kPanelKeyBytes, 'x')), "is of another model");
  EXPECT_EQ(read(empty_store(other_spec())), "has other weights");
}

TEST_F(PanelFileTest, ThatWasChangedIsNoticedWithAMarkAndWithout) {
  ASSERT_EQ(write(), 0);
  const int64_t block = size() - weights_.store.bytes();
  put(size() - 1, 'x');
  EXPECT_TRUE(read().starts_with("damaged: ")) << "the mark is of the file before";
  put(block, 'x');
  EXPECT_EQ(read(), "damaged: embedding");
  put(81, 'x');  // in the label
  EXPECT_EQ(read(), "has a damaged header");
  put(16, 9);
  EXPECT_EQ(read(), "is of another version");
  put(0, 'x');
  EXPECT_EQ(read(), "is not a panel file");
  ASSERT_EQ(truncate(target_.path.c_str(), size() - 1), 0);
  EXPECT_EQ(read(), "is not a panel file");
  ASSERT_EQ(truncate(target_.path.c_str(), 10), 0);
  EXPECT_EQ(read(), "is too short");
}

TEST_F(PanelFileTest, ThatWasCutIsRefused) {
  ASSERT_EQ(write(), 0);
  ASSERT_EQ(truncate(target_.path.c_str(), size() - 1), 0);
  EXPECT_EQ(read(), "has another size");
}

TEST_F(PanelFileTest, IsNotLeftIncomplete) {
  std::atomic<bool> is_stopped{true};
  std::atomic<int64_t> written{0};
  EXPECT_EQ(write_panel_file(weights_.store, target_, is_stopped, &written), ECANCELED);
  EXPECT_EQ(access(target_.part.c_str(), F_OK), -1);
  EXPECT_EQ(size(), -1);
}

TEST_F(PanelFileTest, TakesThePlaceOfMemoryThatIsReadMeanwhile) {  // tsan
  const std::string digest = weights_.store.digest();
  std::mutex in_use;
  std::atomic<bool> is_done{false};
  std::atomic<int64_t> other{0}, same{0};
  std::thread reading([&] {
    while (!is_done) ++(weights_.store.digest() == digest ? same : other);
  });
  {
    PanelTarget owned = target_;
    owned.descriptor = dup(target_.descriptor);
    PanelWriter writer(&weights_.store, &in_use, owned);
    const SharedBuffer& memory = *weights_.store.memory();
    while (memory.bytes_from_file() < memory.bytes()) std::this_thread::yield();
    writer.finish();
    EXPECT_EQ(writer.error(), 0);
  }
  is_done = true;
  reading.join();
  EXPECT_GT(same, 0);
  EXPECT_EQ(other, 0);
  EXPECT_EQ(weights_.store.digest(), digest);
  EXPECT_EQ(read(), digest);
}

TEST_F(PanelFileTest, ThatCannotBeWrittenIsAnError) {
  PanelTarget owned = target_;
  owned.descriptor = open("/dev/full", O_WRONLY);
  std::mutex in_use;
  PanelWriter writer(&weights_.store, &in_use, owned);
  writer.finish();
  EXPECT_EQ(writer.error(), ENOSPC);
  EXPECT_EQ(weights_.store.memory()->bytes_from_file(), 0);
}

// The bytes that each storage's numbers get. A change here makes kept files wrong: raise
// kPanelVersion, and write the new digests below.
TEST(PanelVersion, IsOfTheseBytes) {
  ASSERT_EQ(kPanelVersion, 1);
  const std::map<std::string_view, std::string> expected = {
      {"F32", "c8c8edf637677f2a72723a3f973f5b93"},
      {"F16", "8c5c51f8ec432f1f644d6eebc3fa6b9a"},
      {"BF16", "e85f3a6b89705c7f82d300c07a99d3d3"},
      {"Q8_0", "6414bbffa42ece63e28fb7b75edcdc3f"},
      {"Q4_0", "5bd97a209476ca8633fcf936ef8fe4ab"},
      {"Q4_1", "a9c274099f74a8abfdc4245e94bae027"},
      {"Q5_0", "b0a8db93fd2c936bdaafa7951693de6f"},
      {"Q5_1", "d515cb2891fa24a616ad6140f8208bc4"},
      {"Q2_K", "5379d4cfb023d6d260dff40c34b3d2aa"},
      {"Q3_K", "b5c77b120717163d4df2658cd5e092a3"},
      {"Q4_K", "8ba3e3404d14c89a4260b584451c0d36"},
      {"Q5_K", "4598841781de16b9cc2ec4590e0f1959"},
      {"Q6_K", "d4d50fb40945943707f0797ec015ad62"},
      {"IQ4_NL", "5bd97a209476ca8633fcf936ef8fe4ab"},
      {"IQ4_XS", "c75fec00c61a67e6a6f953c3b0cc319c"},
      {"MXFP4", "cb5e771994ae2e91c3373233945680e1"},
      {"INT4", "5166ceca15ab2d773857019ef996ba6a"},
      {"INT8", "1d7b0c26269dcc8335dafaf77d5bcd2b"},
      {"FP8", "8709c94f1aa88615c77fb759e1c82b8c"}};
  constexpr int64_t kRows = 21, kCols = 512;
  for (const StorageRow& row : kStorageRows) {
    std::vector<std::byte> source(kRows * row_bytes_of(row.storage, kCols));
    for (size_t i = 0; i < source.size(); ++i) {
      source[i] = static_cast<std::byte>(i * 2'654'435'761 >> 13 & 0x3f);
    }
    std::vector<std::byte> panels(packed_bytes(row.type, kRows, kCols));
    ASSERT_TRUE(pack_rows(row.storage, source.data(), 0, kRows, kCols, panels.data())) << row.name;
    Digest digest;
    digest.add(panels.data(), std::ssize(panels));
    const auto found = expected.find(row.name);
    EXPECT_EQ(digest.hex(), found == expected.end() ? "" : found->second) << row.name;
  }
}

}  // namespace
}  // namespace sinkstream
