# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

# A static library of drivers that cargo builds, as a target that IREE's own build links and registers.
#
#   hal_add_driver_library(
#     NAME acme_drivers                 # the target
#     MANIFEST /path/to/Cargo.toml      # the crate; it exports iree_hal_DRIVER_driver_module_register for each driver
#     PACKAGE acme                      # its name there; the library is libPACKAGE.a
#     DRIVERS acme                      # what -DIREE_EXTERNAL_HAL_DRIVERS may name
#     [FEATURES f;g] [NO_DEFAULT_FEATURES] [INCLUDE folder] [TARGET_DIR folder])
#
# The library is built against the headers of the IREE that is being built. Cache variables for all libraries of a
# build: HAL_DRIVER_PROFILE (a cargo profile), HAL_LIBCLANG, and for sanitizers HAL_DRIVER_RUSTFLAGS,
# HAL_DRIVER_CFLAGS and HAL_DRIVER_TARGET.

include("${CMAKE_CURRENT_LIST_DIR}/libclang.cmake")

set(HAL_DRIVER_PROFILE "release" CACHE STRING "The cargo profile that static libraries of drivers are built with.")
set(HAL_DRIVER_RUSTFLAGS "" CACHE STRING "Flags for rustc, such as those of a sanitizer.")
set(HAL_DRIVER_CFLAGS "" CACHE STRING "Flags for the C that is compiled beside it.")
set(HAL_DRIVER_TARGET "" CACHE STRING "A target triple: with one, the flags are not for what runs during the build.")
set(HAL_LIBCLANG "" CACHE PATH "The folder with libclang, where it is not found by itself.")

function(hal_add_driver_library)
  cmake_parse_arguments(_RULE "NO_DEFAULT_FEATURES" "NAME;MANIFEST;PACKAGE;INCLUDE;TARGET_DIR" "DRIVERS;FEATURES"
                        ${ARGN})
  foreach(_NEEDED IN ITEMS NAME MANIFEST PACKAGE DRIVERS)
    if(NOT _RULE_${_NEEDED})
      message(FATAL_ERROR "hal_add_driver_library needs ${_NEEDED}")
    endif()
  endforeach()
  if(NOT _RULE_TARGET_DIR)
    set(_RULE_TARGET_DIR "${CMAKE_BINARY_DIR}/${_RULE_NAME}")
  endif()
  find_program(HAL_CARGO cargo REQUIRED)
  hal_find_libclang(_LIBCLANG)

  # Where cargo puts the library.
  set(_OUTPUT "${HAL_DRIVER_PROFILE}")
  if(_OUTPUT STREQUAL "dev")
    set(_OUTPUT "debug")
  endif()
  set(_OPTIONS --profile "${HAL_DRIVER_PROFILE}")
  if(HAL_DRIVER_TARGET)
    set(_OUTPUT "${HAL_DRIVER_TARGET}/${_OUTPUT}")
    list(APPEND _OPTIONS "--target=${HAL_DRIVER_TARGET}")
  endif()
  string(REPLACE "-" "_" _LIBRARY "${_RULE_PACKAGE}")
  set(_LIBRARY "${_RULE_TARGET_DIR}/${_OUTPUT}/lib${_LIBRARY}.a")

  if(_RULE_NO_DEFAULT_FEATURES)
    list(APPEND _OPTIONS --no-default-features)
  endif()
  if(_RULE_FEATURES)
    list(JOIN _RULE_FEATURES "," _FEATURES)
    list(APPEND _OPTIONS --features "${_FEATURES}")
  endif()
  # A stable compiler takes flags of unstable features, as those of sanitizers are, only where it is told so.
  set(_UNSTABLE)
  if(HAL_DRIVER_RUSTFLAGS MATCHES "-Z")
    set(_UNSTABLE "RUSTC_BOOTSTRAP=1")
  endif()

  # Set only where there are any: empty is another build than unset.
  set(_CFLAGS)
  if(HAL_DRIVER_CFLAGS)
    set(_CFLAGS "TARGET_CFLAGS=${HAL_DRIVER_CFLAGS}")
  endif()

  # Cargo knows best what is out of date, so it is always asked.
  list(JOIN _RULE_DRIVERS ", " _SHOWN)
  add_custom_target(${_RULE_NAME}_cargo
    COMMAND "${CMAKE_COMMAND}" -E env
      "--unset=CARGO_ENCODED_RUSTFLAGS"
      "IREE_SOURCE_DIR=${IREE_SOURCE_DIR}"
      "CARGO_TARGET_DIR=${_RULE_TARGET_DIR}"
      "RUSTFLAGS=${HAL_DRIVER_RUSTFLAGS}"
      ${_CFLAGS}
      ${_UNSTABLE}
      # Not LIBCLANG_PATH: cargo builds bindgen, and all that stands on it, again whenever that is another than
      # before, and a cargo that is called by hand in the same target folder has none.
      "HAL_LIBCLANG=${_LIBCLANG}"
      # The C linker brings the runtime of the build that this is part of.
      "IREE_LIB_DIR=brought-by-the-linker"
      # On a terminal a bar while there is something to build, since the first time takes minutes; nothing where
      # nothing has changed.
      sh -c "test -t 2 && export CARGO_TERM_PROGRESS_WHEN=always CARGO_TERM_PROGRESS_WIDTH=80; exec \"$@\"" sh
      "${HAL_CARGO}" rustc --quiet --locked --lib --crate-type staticlib --package "${_RULE_PACKAGE}"
        --manifest-path "${_RULE_MANIFEST}" ${_OPTIONS}
    BYPRODUCTS "${_LIBRARY}"
    COMMENT "Building Rust HAL drivers: ${_SHOWN}"
    USES_TERMINAL
    VERBATIM)

  add_library(${_RULE_NAME}_archive STATIC IMPORTED GLOBAL)
  set_target_properties(${_RULE_NAME}_archive PROPERTIES IMPORTED_LOCATION "${_LIBRARY}")
  if(_RULE_INCLUDE)
    set_target_properties(${_RULE_NAME}_archive PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_RULE_INCLUDE}")
  endif()
  # Ninja sees that whatever links the archive needs it. Told by name, it would also build it before IREE's own
  # libraries, which do not.
  if(NOT CMAKE_GENERATOR MATCHES "Ninja")
    add_dependencies(${_RULE_NAME}_archive ${_RULE_NAME}_cargo)
  endif()

  # IREE links drivers by target. The archive calls the runtime, so what it calls comes behind it.
  add_library(${_RULE_NAME} INTERFACE)
  target_link_libraries(${_RULE_NAME} INTERFACE
    "$<BUILD_INTERFACE:${_RULE_NAME}_archive>"
    iree::async
    iree::async::util::proactor_pool
    iree::base
    iree::hal
    iree::hal::local
    iree::hal::local::executable_loader
    iree::hal::local::executable_plugin_manager
    iree::hal::local::loaders::registration
    iree::hal::local::plugins::registration
    iree::hal::local::profile
    iree::hal::local::transient_buffer
    iree::hal::memory::passthrough_pool
    iree::hal::memory::tlsf_pool
    iree::hal::utils::files
    ${CMAKE_DL_LIBS})
  # IREE exports its own targets, and with them what they link.
  iree_install_targets(TARGETS ${_RULE_NAME} COMPONENT IREEDevLibraries-Runtime EXPORT_SET Runtime)

  foreach(_DRIVER IN LISTS _RULE_DRIVERS)
    iree_register_external_hal_driver(
      NAME ${_DRIVER}
      DRIVER_TARGET ${_RULE_NAME}
      REGISTER_FN "iree_hal_${_DRIVER}_driver_module_register")
  endforeach()
endfunction()
