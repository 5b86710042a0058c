// The merges of a SentencePiece vocabulary, which a file gives only as pieces and scores. In Python
// this search would take most of the time of opening a large one.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/gil.h"
#include "bindings/register.h"
#include "common/check.h"

namespace py = pybind11;

namespace sinkstream {

namespace {

using Letters = std::u32string_view;  // code points, as Python counts them

struct Piece {
  size_t begin = 0;  // in Pieces::letters
  size_t length = 0;
  int64_t id = 0;    // its index among the tokens
  double score = 0;  // never NaN
};

struct Pieces {
  std::u32string letters;  // of all pieces, one after the other
  std::vector<Piece> pieces;

  Letters of(uint32_t index) const {
    return Letters(letters).substr(pieces[index].begin, pieces[index].length);
  }
};

struct Merge {
  double score;          // of the whole
  size_t cut;            // letters of the left part
  int64_t id;            // of the whole
  uint32_t left, right;  // indices of pieces
};

// Of two splits of one piece, the one with the longer left part goes first: it is the leftmost of
// overlapping pairs in a run of equal characters.
bool operator<(const Merge& a, const Merge& b) {
  if (a.score != b.score) return a.score > b.score;
  return a.cut != b.cut ? a.cut > b.cut : a.id < b.id;
}

// Polynomial hashes modulo the prime 2^61 - 1 with a random base: of any part of a piece in
// constant time, and no file can be made whose pieces collide.
class PartHashes {
 public:
  PartHashes() {
    std::random_device random;
    base_ = ((uint64_t{random()} << 32) | random()) % (kPrime - 0x200000) + 0x110000;
  }

  void set_text(Letters text) {
    prefix_.assign(1, 0);
    for (const char32_t letter : text) {
      prefix_.push_back(add(multiply(prefix_.back(), base_), uint64_t{letter} + 1));
    }
    while (powers_.size() < prefix_.size()) powers_.push_back(multiply(powers_.back(), base_));
  }
  uint64_t before(size_t cut) const { return prefix_[cut]; }
  uint64_t after(size_t cut) const {
    const uint64_t shifted = multiply(prefix_[cut], powers_[prefix_.size() - 1 - cut]);
    return add(prefix_.back(), kPrime - shifted);
  }
  uint64_t all() const { return prefix_.back(); }

 private:
  static constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;

  static uint64_t add(uint64_t a, uint64_t b) {
    const uint64_t sum = a + b;
    return sum >= kPrime ? sum - kPrime : sum;
  }
  static uint64_t multiply(uint64_t a, uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return add(static_cast<uint64_t>(product) & kPrime, static_cast<uint64_t>(product >> 61));
  }

  uint64_t base_ = 0;
  std::vector<uint64_t> prefix_;
  std::vector<uint64_t> powers_ = {1};
};

// Finds a piece by its letters. A table with open addressing, at most two thirds full.
class PieceTable {
 public:
  static constexpr uint32_t kNone = 0xffffffff;

  explicit PieceTable(const Pieces& pieces)
      : pieces_(pieces), rows_(std::bit_ceil(pieces.pieces.size() * 3 / 2 + 1), Row{0, kNone}) {}

  // Returns false if there is such a piece already.
  bool add(uint32_t index, uint64_t hash) {
    Row& row = rows_[row_of(pieces_.of(index), hash)];
    if (row.index != kNone) return false;
    row = {tag(hash), index};
    return true;
  }
  uint32_t find(Letters text, uint64_t hash) const { return rows_[row_of(text, hash)].index; }

 private:
  struct Row {
    uint32_t tag;
    uint32_t index;
  };

  static uint32_t tag(uint64_t hash) { return static_cast<uint32_t>(hash >> 29); }

  // The row with this text, or the free one where it belongs.
  size_t row_of(Letters text, uint64_t hash) const {
    size_t row = hash & (rows_.size() - 1);
    while (rows_[row].index != kNone &&
           (rows_[row].tag != tag(hash) || pieces_.of(rows_[row].index) != text)) {
      row = (row + 1) & (rows_.size() - 1);
    }
    return row;
  }

  const Pieces& pieces_;
  std::vector<Row> rows_;
};

// Every split of a piece into two pieces, best first. Stops when there are more than `limit`.
std::vector<Merge> find_merges(const Pieces& all, size_t limit) {
  PartHashes hashes;
  PieceTable table(all);
  std::vector<uint32_t> distinct;
  for (uint32_t i = 0; i < all.pieces.size(); ++i) {
    hashes.set_text(all.of(i));
    if (table.add(i, hashes.all())) distinct.push_back(i);
  }
  std::vector<Merge> merges;
  for (const uint32_t i : distinct) {
    if (merges.size() > limit) break;
    const Letters text = all.of(i);
    hashes.set_text(text);
    for (size_t cut = text.size(); cut-- > 1;) {
      const uint32_t left = table.find(text.substr(0, cut), hashes.before(cut));
      if (left == PieceTable::kNone) continue;
      const uint32_t right = table.find(text.substr(cut), hashes.after(cut));
      if (right == PieceTable::kNone) continue;
      merges.push_back({all.pieces[i].score, cut, all.pieces[i].id, left, right});
    }
  }
  std::sort(merges.begin(), merges.end());
  return merges;
}

int64_t to_id(PyObject* value) {
  const int64_t id = PyLong_AsLongLong(value);
  if (id == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return id;
}

double to_score(PyObject* value) {
  const double score = PyFloat_AsDouble(value);
  if (score == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  if (std::isnan(score)) throw py::value_error("a score must not be NaN");
  return score;
}

void append_letters(PyObject* text, std::u32string* letters) {
  const Py_ssize_t length = PyUnicode_GET_LENGTH(text);
  const int kind = PyUnicode_KIND(text);
  const void* data = PyUnicode_DATA(text);
  for (Py_ssize_t i = 0; i < length; ++i) letters->push_back(PyUnicode_READ(kind, data, i));
}

Pieces read_pieces(const py::list& tokens, const py::list& ordinary, const py::list& scores) {
  SINKSTREAM_CHECK(ordinary.size() < PieceTable::kNone, ordinary.size(), " pieces");
  const auto count = static_cast<int64_t>(std::min(tokens.size(), scores.size()));
  Pieces found;
  found.pieces.reserve(ordinary.size());
  for (const py::handle value : ordinary) {
    const int64_t id = to_id(value.ptr());
    if (id < 0 || id >= count) throw py::index_error("a piece must have a text and a score");
    PyObject* text = PyList_GET_ITEM(tokens.ptr(), id);
    if (!PyUnicode_Check(text)) throw py::type_error("a piece must be a string");
    const size_t begin = found.letters.size();
    append_letters(text, &found.letters);
    found.pieces.push_back(
        {begin, found.letters.size() - begin, id, to_score(PyList_GET_ITEM(scores.ptr(), id))});
  }
  return found;
}

py::object ranked_merges(const py::list& tokens, const py::list& ordinary, const py::list& scores,
                         size_t limit) {
  // Another thread may change the list while the GIL is released.
  const py::list texts(tokens[py::slice(std::nullopt, std::nullopt, std::nullopt)]);
  const Pieces all = read_pieces(texts, ordinary, scores);
  std::vector<Merge> merges;
  {
    ReleaseGil release;
    merges = find_merges(all, limit);
  }
  if (merges.size() > limit) return py::none();
  py::list pairs(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    PyObject* pair = PyTuple_Pack(2, PyList_GET_ITEM(texts.ptr(), all.pieces[merges[i].left].id),
                                  PyList_GET_ITEM(texts.ptr(), all.pieces[merges[i].right].id));
    if (pair == nullptr) throw py::error_already_set();
    PyList_SET_ITEM(pairs.ptr(), i, pair);
  }
  return pairs;
}

}  // namespace

void register_ranked_merges(py::module_& module) {
  module.def("ranked_merges", &ranked_merges, py::arg("tokens"), py::arg("ordinary"),
             py::arg("scores"), py::arg("limit"),
             "Every split of a token into two tokens, all of them with ids in `ordinary`: by the "
             "score of the whole, longer left parts first. None if there are more than `limit`.");
}

}  // namespace sinkstream
