// Moves tokens to other slots of their own sequence, where a cut in its middle made room.
// A key is turned on by the distance that its token moves, and rounded once more, in int8 with a
// scale of its own again; values go as they are stored, an int8 value's scale with it.
//
// Only a cut needs this: tokens that leave at the old end of the window are overwritten.
#pragma once

#include "kernels/append.h"

namespace sinkstream {

struct EvictArgs {
  // [rows] each, moved in this order: a slot may be written once an earlier row has been read.
  const Slot* from = nullptr;
  const Slot* to = nullptr;
  int64_t rows = 0;
  PageShape shape;
  Rotation rotation;  // one row, for all: the angles of the distance, without attention factor
};

using EvictOp = void(const EvictArgs&, const Launch&);

}  // namespace sinkstream
