// Scales of keys and values in a checkpoint.
#pragma once

#include "common/base/status.h"
#include "common/weights/checkpoint.h"
#include "kernels/api/dtype.h"

namespace tandem::model {

/// Keys and values of 8 bit are stored as they are, so a checkpoint that wants them scaled is
/// refused (kInvalidArgument, names the flag and the tensor). Any checkpoint is fine with other
/// types.
Status check_kv_scales(const weights::Checkpoint& checkpoint, kernels::DType kv_dtype);

}  // namespace tandem::model
