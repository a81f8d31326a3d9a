// The vector loops of src/core/simd.hpp.
#pragma once

#include "core/simd.hpp"
