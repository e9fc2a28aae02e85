# Adds the drivers of this repository to a build of IREE:
#
#   cmake … -DIREE_CMAKE_PLUGIN_PATHS=<this folder> -DIREE_EXTERNAL_HAL_DRIVERS="gaudi;mock;qaic;tenstorrent"
#
# The static library is built by cargo, against the headers of the IREE that is being built. bindgen needs libclang:
# LIBCLANG_PATH names its folder where it is not found by itself.

set(_HAL_DRIVER_DIR "${CMAKE_CURRENT_LIST_DIR}")
set(HAL_DRIVER_FEATURES "gaudi;mock;qaic;tenstorrent" CACHE STRING "The backends that are built into the static library.")
set(HAL_DRIVER_PROFILE "release" CACHE STRING "The cargo profile that the static library is built with.")
set(HAL_DRIVER_TARGET_DIR "${CMAKE_BINARY_DIR}/hal-driver" CACHE PATH "Where cargo builds the static library.")
set(HAL_DRIVER_RUSTFLAGS "" CACHE STRING "Flags for rustc, such as those of a sanitizer.")
set(HAL_DRIVER_CFLAGS "" CACHE STRING "Flags for the C that is compiled beside it.")
set(HAL_DRIVER_TARGET "" CACHE STRING "A target triple: with one, the flags are not for what runs during the build.")
set(HAL_LIBCLANG "$ENV{LIBCLANG_PATH}" CACHE PATH "The folder with libclang, where it is not found by itself.")
find_program(HAL_CARGO cargo REQUIRED)

if(HAL_DRIVER_PROFILE STREQUAL "dev")
  set(_HAL_DRIVER_OUTPUT "debug")
else()
  set(_HAL_DRIVER_OUTPUT "${HAL_DRIVER_PROFILE}")
endif()
set(_HAL_DRIVER_TARGET)
if(HAL_DRIVER_TARGET)
  set(_HAL_DRIVER_OUTPUT "${HAL_DRIVER_TARGET}/${_HAL_DRIVER_OUTPUT}")
  set(_HAL_DRIVER_TARGET "--target=${HAL_DRIVER_TARGET}")
endif()
# A stable compiler takes flags of unstable features, as those of sanitizers are, only where it is told so.
set(_HAL_DRIVER_UNSTABLE)
if(HAL_DRIVER_RUSTFLAGS MATCHES "-Z")
  set(_HAL_DRIVER_UNSTABLE "RUSTC_BOOTSTRAP=1")
endif()
set(_HAL_DRIVER_LIBRARY "${HAL_DRIVER_TARGET_DIR}/${_HAL_DRIVER_OUTPUT}/libhal_driver.a")

# Cargo knows best what is out of date, so it is always asked.
add_custom_target(hal_driver_cargo
  COMMAND "${CMAKE_COMMAND}" -E env
    "--unset=CARGO_ENCODED_RUSTFLAGS"
    "IREE_SOURCE_DIR=${IREE_SOURCE_DIR}"
    "CARGO_TARGET_DIR=${HAL_DRIVER_TARGET_DIR}"
    "RUSTFLAGS=${HAL_DRIVER_RUSTFLAGS}"
    "TARGET_CFLAGS=${HAL_DRIVER_CFLAGS}"
    ${_HAL_DRIVER_UNSTABLE}
    "LIBCLANG_PATH=${HAL_LIBCLANG}"
    "${HAL_CARGO}" build --quiet --locked --lib --package hal-driver --profile "${HAL_DRIVER_PROFILE}"
      ${_HAL_DRIVER_TARGET} --manifest-path "${_HAL_DRIVER_DIR}/Cargo.toml"
      --no-default-features --features "$<JOIN:${HAL_DRIVER_FEATURES},$<COMMA>>"
  BYPRODUCTS "${_HAL_DRIVER_LIBRARY}"
  COMMENT "Building the Rust HAL drivers: ${HAL_DRIVER_FEATURES}"
  USES_TERMINAL
  VERBATIM)

add_library(hal_driver_archive STATIC IMPORTED GLOBAL)
set_target_properties(hal_driver_archive PROPERTIES
  IMPORTED_LOCATION "${_HAL_DRIVER_LIBRARY}"
  INTERFACE_INCLUDE_DIRECTORIES "${_HAL_DRIVER_DIR}/include")
add_dependencies(hal_driver_archive hal_driver_cargo)

# IREE links drivers by target. The archive calls the runtime, so what it calls comes behind it.
add_library(hal_drivers INTERFACE)
target_link_libraries(hal_drivers INTERFACE
  "$<BUILD_INTERFACE:hal_driver_archive>"
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
iree_install_targets(TARGETS hal_drivers COMPONENT IREEDevLibraries-Runtime EXPORT_SET Runtime)

foreach(_NAME IN ITEMS gaudi mock qaic template tenstorrent)
  if(_NAME IN_LIST HAL_DRIVER_FEATURES)
    iree_register_external_hal_driver(
      NAME ${_NAME}
      DRIVER_TARGET hal_drivers
      REGISTER_FN "iree_hal_${_NAME}_driver_module_register")
  endif()
endforeach()
