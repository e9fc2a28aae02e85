// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// IREE's build generates the function that registers drivers from outside. A program that is linked by cargo registers
// the drivers that it wants itself, so there it is this one, which does nothing; in a build of IREE the generated one
// takes its place.

#include "iree/hal/api.h"

__attribute__((weak)) iree_status_t iree_hal_register_external_drivers(
    iree_hal_driver_registry_t* registry) {
  (void)registry;
  return iree_ok_status();
}
