# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

# hal_find_libclang(OUT): the folder with libclang, which bindgen loads while cargo builds. Stops the configuration
# with one line where there is none.
function(hal_find_libclang OUT)
  if(NOT "$ENV{LIBCLANG_PATH}" STREQUAL "")
    set(_NAMED "$ENV{LIBCLANG_PATH}")
    set(_NAME "LIBCLANG_PATH")
  else()
    set(_NAMED "${HAL_LIBCLANG}")
    set(_NAME "HAL_LIBCLANG")
  endif()
  set(_REPOSITORY "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../..")
  get_filename_component(_REPOSITORY "${_REPOSITORY}" ABSOLUTE)
  if(_NAMED)
    set(_FOLDERS "${_NAMED}")
  else()
    file(GLOB _FOLDERS "${_REPOSITORY}/target/python/lib/*/site-packages/clang/native" "/usr/lib/llvm-*/lib")
    list(APPEND _FOLDERS /usr/lib /usr/lib64 /usr/local/lib "/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}")
  endif()
  foreach(_FOLDER IN LISTS _FOLDERS)
    # Not libclang-cpp, which lies beside it and is another library.
    file(GLOB _FOUND "${_FOLDER}/libclang.so" "${_FOLDER}/libclang.so.*" "${_FOLDER}/libclang-[0-9]*.so*"
      "${_FOLDER}/libclang.dylib")
    if(_FOUND)
      set(${OUT} "${_FOLDER}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  if(_NAMED)
    message(FATAL_ERROR "${_NAME} is ${_NAMED}, and there is no libclang: name the folder with libclang.so, "
            "or unset it and run `cargo xtask setup` in ${_REPOSITORY}")
  endif()
  message(FATAL_ERROR "libclang is needed to read IREE's headers, and is not here: "
          "run `cargo xtask setup` in ${_REPOSITORY}, or set LIBCLANG_PATH to its folder")
endfunction()
