// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The build script's messages about missing parts: one line, with what to do.

#[path = "../build/libclang.rs"]
mod libclang;
#[path = "../build/runtime.rs"]
mod runtime;

use std::path::{Path, PathBuf};

/// A new folder with empty files in it.
fn folder(name: &str, files: &[&str]) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("build").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    for file in files {
        let path = folder.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"").unwrap();
    }
    folder
}

fn is_one_line_that_says_setup(message: &str) {
    assert!(message.contains("`cargo xtask setup`") && !message.contains('\n'), "{message}");
}

#[test]
fn missing_libclang_names_the_command_that_installs_it() {
    is_one_line_that_says_setup(&libclang::find(None, &[folder("empty", &[])]).unwrap_err());
}

#[test]
fn wrong_libclang_path_is_named_and_not_replaced() {
    let right = folder("right", &["libclang.so"]);
    let wrong = folder("wrong", &[]);
    let message = libclang::find(Some(("HAL_LIBCLANG", &wrong)), &[right]).unwrap_err();
    is_one_line_that_says_setup(&message);
    let named = format!("HAL_LIBCLANG is {}", wrong.display());
    assert!(message.contains(&named), "{message}");
}

#[test]
fn cpp_library_alone_is_not_libclang() {
    let cpp = folder("cpp", &["libclang-cpp.so.14", "libclang-cpp.so"]);
    assert!(libclang::find(None, std::slice::from_ref(&cpp)).is_err());
    for name in ["libclang.so", "libclang.so.1", "libclang-14.so.1", "libclang.so.14"] {
        let versioned = folder("versioned", &[name]);
        assert_eq!(libclang::find(None, &[cpp.clone(), versioned.clone()]), Ok(versioned));
    }
}

#[test]
fn libclang_path_may_name_the_library_itself() {
    let native = folder("file", &["libclang.so"]);
    assert_eq!(libclang::find(Some(("LIBCLANG_PATH", &native.join("libclang.so"))), &[]), Ok(native));
}

#[test]
fn installed_libclang_is_found_under_the_target_folder() {
    let target = folder("target", &["python/lib/python3.11/site-packages/clang/native/libclang.so"]);
    let native = target.join("python/lib/python3.11/site-packages/clang/native");
    assert_eq!(libclang::find(None, &libclang::candidates(&[target])), Ok(native));
}

#[test]
fn missing_runtime_names_the_command_that_builds_it() {
    is_one_line_that_says_setup(&runtime::find(None, &[folder("bare", &[])]).unwrap_err());
    let named = folder("named", &[]);
    let message = runtime::find(Some(&named), &[]).unwrap_err();
    is_one_line_that_says_setup(&message);
    assert!(message.contains(named.to_str().unwrap()), "{message}");
}

#[test]
fn runtime_is_found_where_it_was_built_or_is_named() {
    let target = folder("built", &["iree/lib/libiree_hal_runtime.a"]);
    let lib = target.join("iree/lib");
    assert_eq!(runtime::find(None, &[folder("first", &[]), target]), Ok(Some(lib.clone())));
    assert_eq!(runtime::find(Some(&lib), &[]), Ok(Some(lib)));
    assert_eq!(runtime::find(Some(Path::new(runtime::BROUGHT)), &[]), Ok(None));
}
