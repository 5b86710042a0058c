// Moves tokens to other slots of their own sequence, after tokens in its middle were evicted.
// A key is rotated by the distance that its token moves and rounded again; an int8 key gets a new
// scale. Values are copied as stored, with the scale of an int8 value.
//
// Only eviction in the middle needs this: tokens at the old end of the window are overwritten.
#pragma once

#include "kernels/append.h"

namespace sinkstream {

struct EvictArgs {
  // [rows] each, moved in this order: a row may be written over one that was moved before it.
  const Slot* from = nullptr;
  const Slot* to = nullptr;
  int64_t rows = 0;
  PageShape shape;
  Rotation
      rotation;  // one row, for all tokens: the angles of the distance, without attention factor
};

using EvictOp = void(const EvictArgs&, const Launch&);

}  // namespace sinkstream
