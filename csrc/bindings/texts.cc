// Loops over all tokens of a vocabulary: in Python they would be the slowest part of opening a
// checkpoint. Handles strings and bytes, but no files.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "bindings/register.h"
#include "common/check.h"

namespace py = pybind11;

namespace sinkstream {

namespace {

py::object owned(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

// Reads strings as GGUF writes them: length in 8 bytes, little-endian, then UTF-8. Stops before the
// first string that is incomplete or not UTF-8; the caller reads more bytes or reports the error.
py::tuple read_texts(const py::bytes& bytes, int64_t begin, int64_t count) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(bytes.ptr(), &data, &size) != 0) throw py::error_already_set();
  SINKSTREAM_CHECK(begin >= 0 && begin <= size, "texts begin at ", begin, " of ", size);
  py::list texts;
  int64_t at = begin;
  for (int64_t i = 0; i < count && size - at >= 8; ++i) {
    uint64_t length;
    std::memcpy(&length, data + at, 8);
    if (length > static_cast<uint64_t>(size - at - 8)) break;
    PyObject* text = PyUnicode_DecodeUTF8(data + at + 8, static_cast<Py_ssize_t>(length), nullptr);
    if (text == nullptr) {
      if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) throw py::error_already_set();
      PyErr_Clear();
      break;
    }
    texts.append(owned(text));
    at += 8 + static_cast<int64_t>(length);
  }
  return py::make_tuple(texts, at);
}

// Splits each string at its first space.
py::list split_pairs(const py::list& texts) {
  py::list pairs(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    PyObject* text = texts[i].ptr();
    if (!PyUnicode_Check(text))
      throw py::type_error("tokenizer: each merge must be a string of two parts");
    const Py_ssize_t length = PyUnicode_GET_LENGTH(text);
    const Py_ssize_t space = PyUnicode_FindChar(text, ' ', 0, length, 1);
    if (space == -2) throw py::error_already_set();
    const Py_ssize_t end = space == -1 ? length : space;
    const py::object left = owned(PyUnicode_Substring(text, 0, end));
    const py::object right = owned(PyUnicode_Substring(text, std::min(end + 1, length), length));
    pairs[i] = owned(PyTuple_Pack(2, left.ptr(), right.ptr()));
  }
  return pairs;
}

// The byte for each character of GPT-2's alphabet, and -1 for characters outside it. Printable
// bytes are themselves; the others are mapped to 0x100 and up.
constexpr int kLetters = 0x100 + 68;
constexpr std::array<int16_t, kLetters> byte_letters() {
  std::array<int16_t, kLetters> bytes{};
  int moved = 0x100;
  for (int byte = 0; byte < 0x100; ++byte) {
    const bool is_printable =
        (byte >= 0x21 && byte < 0x7f) || (byte >= 0xa1 && byte < 0xad) || byte >= 0xae;
    bytes[byte] = is_printable ? byte : -1;
    if (!is_printable) bytes[moved++] = byte;
  }
  return bytes;
}

py::object bytes_of(const py::handle& token, std::string* bytes) {
  static constexpr std::array<int16_t, kLetters> kBytes = byte_letters();
  if (!PyUnicode_Check(token.ptr())) throw py::type_error("a token must be a string");
  const Py_ssize_t length = PyUnicode_GET_LENGTH(token.ptr());
  const int kind = PyUnicode_KIND(token.ptr());
  const void* letters = PyUnicode_DATA(token.ptr());
  bytes->resize(length);
  for (Py_ssize_t i = 0; i < length; ++i) {
    const Py_UCS4 letter = PyUnicode_READ(kind, letters, i);
    // An added token may use any characters: it is encoded as UTF-8.
    if (letter >= kLetters || kBytes[letter] < 0) return owned(PyUnicode_AsUTF8String(token.ptr()));
    (*bytes)[i] = static_cast<char>(kBytes[letter]);
  }
  return py::bytes(*bytes);
}

py::list byte_level_bytes(const py::list& tokens) {
  py::list found(tokens.size());
  std::string bytes;
  for (size_t i = 0; i < tokens.size(); ++i) found[i] = bytes_of(tokens[i], &bytes);
  return found;
}

}  // namespace

void register_texts(py::module_& module) {
  module.def("read_texts", &read_texts, py::arg("bytes"), py::arg("begin"), py::arg("count"),
             "Read at most `count` strings as GGUF writes them, up to the first incomplete one. "
             "Returns them and the offset after them.");
  module.def("split_pairs", &split_pairs, py::arg("texts"),
             "Split each string at its first space.");
  module.def("byte_level_bytes", &byte_level_bytes, py::arg("tokens"),
             "The bytes of tokens in GPT-2's alphabet; for other tokens, their UTF-8.");
}

}  // namespace sinkstream
