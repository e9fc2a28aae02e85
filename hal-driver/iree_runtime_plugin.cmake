# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

# Adds the drivers of this repository to a build of IREE:
#
#   cmake … -DIREE_CMAKE_PLUGIN_PATHS=<this folder> -DIREE_EXTERNAL_HAL_DRIVERS="gaudi;mock;nvidia;qaic;tenstorrent"
#
# That list is the only one: what it names of this repository's drivers is what cargo builds into the static library,
# against the headers of the IREE that is being built. bindgen needs libclang: the environment's LIBCLANG_PATH names
# its folder, read each time that CMake configures; then HAL_LIBCLANG; then it is looked for.

include("${CMAKE_CURRENT_LIST_DIR}/cmake/static_library.cmake")

set(HAL_DRIVER_TARGET_DIR "${CMAKE_BINARY_DIR}/hal-driver" CACHE PATH "Where cargo builds the static library.")

set(HAL_DRIVER_FEATURES "" CACHE STRING "Features of the crate beside its drivers.")

# A driver is a feature of the crate that stands for a backend's crate: NAME = ["dep:hal-NAME"].
set(_HAL_DRIVERS)
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/Cargo.toml" _HAL_LINES REGEX "^[a-z0-9_]+ = .\"dep:hal-")
foreach(_HAL_LINE IN ITEMS ${_HAL_LINES})
  string(REGEX MATCH "^[a-z0-9_]+" _HAL_NAME "${_HAL_LINE}")
  list(APPEND _HAL_DRIVERS "${_HAL_NAME}")
endforeach()
set(_HAL_WANTED)
foreach(_HAL_NAME IN LISTS _HAL_DRIVERS)
  if(_HAL_NAME IN_LIST IREE_EXTERNAL_HAL_DRIVERS)
    list(APPEND _HAL_WANTED ${_HAL_NAME})
  endif()
endforeach()

if(_HAL_WANTED)
  hal_add_driver_library(
    NAME hal_drivers
    MANIFEST "${CMAKE_CURRENT_LIST_DIR}/Cargo.toml"
    PACKAGE hal-driver
    DRIVERS ${_HAL_WANTED}
    NO_DEFAULT_FEATURES
    FEATURES ${_HAL_WANTED} ${HAL_DRIVER_FEATURES}
    INCLUDE "${CMAKE_CURRENT_LIST_DIR}/include"
    TARGET_DIR "${HAL_DRIVER_TARGET_DIR}")
else()
  list(JOIN _HAL_DRIVERS ", " _HAL_SHOWN)
  message(WARNING "${CMAKE_CURRENT_LIST_DIR} adds no driver: -DIREE_EXTERNAL_HAL_DRIVERS names none of ${_HAL_SHOWN}")
endif()
