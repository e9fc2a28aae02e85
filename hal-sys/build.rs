// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Generates the bindings: finds IREE's sources and libclang, runs bindgen, and compiles C's inline functions.

#[path = "build/libclang.rs"]
mod libclang;
#[path = "build/runtime.rs"]
mod runtime;

use std::env;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The IREE release that this crate binds to.
const VERSION: &str = "3.13.0";

fn main() {
    for input in ["wrapper.h", "layout.txt", "external_drivers.c", "build.rs", "build"] {
        println!("cargo::rerun-if-changed={input}");
    }
    // Not the path of libclang: any libclang reads the headers alike, and another path would rebuild everything for
    // nothing.
    for variable in ["IREE_SOURCE_DIR", "IREE_LIB_DIR"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if let Err(error) = build() {
        println!("cargo::error={error}");
    }
}

fn build() -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let targets = target_folders(&out)?;
    let source = iree_source()?;
    // Before the long work, so that a missing runtime is reported at once.
    let runtime = runtime::find(named("IREE_LIB_DIR").as_deref(), &targets)?;
    // CMake builds and the project's own commands set the second, so that builds with the first in the same folder
    // do not run bindgen again.
    let libclang = ["LIBCLANG_PATH", "HAL_LIBCLANG"].iter().find_map(|&name| Some((name, named(name)?)));
    let libclang = libclang.as_ref().map(|(name, path)| (*name, path.as_path()));
    let libclang = libclang::find(libclang, &libclang::candidates(&targets))?;
    // SAFETY: a build script has one thread.
    unsafe { env::set_var("LIBCLANG_PATH", libclang) };
    let mut arguments = vec![format!("-I{}", source.join("runtime/src").display())];
    arguments.extend(DEFINES.iter().map(|define| format!("-D{define}")));
    if let Some(builtin) = gcc_headers() {
        arguments.push(format!("-isystem{}", builtin.display()));
    }

    bind(&source, &arguments, &out)?;

    let layout = layout_tables(&out)?;
    let mut shim = cc::Build::new();
    shim.file(out.join("inline.c"))
        .file(layout)
        .file("external_drivers.c")
        .include(source.join("runtime/src"))
        .include(".")
        .warnings(false);
    for define in DEFINES {
        let (name, value) = define.split_once('=').unwrap_or((define, ""));
        shim.define(name, if value.is_empty() { None } else { Some(value) });
    }
    shim.flag_if_supported("-fvisibility=hidden");
    shim.try_compile("iree_hal_shim").map_err(|error| error.to_string())?;
    if let Some(folder) = runtime {
        link(&folder);
    }
    Ok(())
}

fn bind(source: &Path, arguments: &[String], out: &Path) -> Result<(), String> {
    let builder = bindgen::Builder::default()
        .header("wrapper.h")
        .clang_args(arguments)
        .allowlist_function("iree_.*")
        .allowlist_type("iree_.*")
        .allowlist_var("(iree_|IREE_).*")
        .blocklist_type("iree_.*_test_.*")
        // Inline functions that use variables of IREE's HAL module, which programs without modules do not link, or
        // which, for the executable cache, no library defines.
        .blocklist_function(format!("iree_hal_({MODULE_TYPES})_(type|isa|deref)"))
        .wrap_static_fns(true)
        .wrap_static_fns_path(out.join("inline"))
        .wrap_static_fns_suffix("__inline")
        .derive_default(true)
        .generate_comments(false)
        .prepend_enum_name(false)
        .layout_tests(true)
        .merge_extern_blocks(true)
        .size_t_is_usize(true)
        .rust_target(bindgen::RustTarget::stable(85, 0).map_err(|error| error.to_string())?)
        .rust_edition(bindgen::RustEdition::Edition2024);
    // A libclang that cannot be loaded makes bindgen panic; only the panic's message matters.
    std::panic::set_hook(Box::new(|_| ()));
    let generated = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.generate()));
    let _ = std::panic::take_hook();
    generated
        .map_err(|panic| panic.downcast::<String>().map_or("bindgen panicked".into(), |message| *message))
        .and_then(|bindings| bindings.map_err(|error| error.to_string()))
        .map_err(|error| format!("bindgen could not read IREE's headers in {}: {error}", source.display()))?
        .write_to_file(out.join("bindings.rs"))
        .map_err(|error| format!("writing the bindings: {error}"))
}

/// A path from an environment variable.
fn named(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The folders of the project's build outputs: the target folder of this build, and this repository's, which
/// another workspace does not share.
fn target_folders(out: &Path) -> Result<Vec<PathBuf>, String> {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo sets CARGO_MANIFEST_DIR")?);
    let repository = manifest.parent().map(|root| root.join("target"));
    Ok(out.ancestors().map(Path::to_owned).chain(repository).collect())
}

/// The types of HAL objects in IREE's virtual machine.
const MODULE_TYPES: &str = "allocator|buffer|buffer_view|channel|command_buffer|device|event|executable|\
                            executable_cache|fence|file|semaphore";

/// The defines of the linked libraries that affect layouts.
const DEFINES: [&str; 4] =
    ["NDEBUG", "IREE_THREADING_ENABLE=1", "IREE_ALLOCATOR_SYSTEM_CTL=iree_allocator_libc_ctl", "_GNU_SOURCE"];

fn iree_source() -> Result<PathBuf, String> {
    let source = match named("IREE_SOURCE_DIR") {
        Some(path) => path,
        None => packaged_source()?,
    };
    let header = source.join("runtime/src/iree/hal/api.h");
    if !header.is_file() {
        return Err(format!(
            "there is no IREE source in {}: {} is missing",
            source.display(),
            header.display()
        ));
    }
    let version = std::fs::read_to_string(source.join("runtime/version.json")).unwrap_or_default();
    if !version.contains(VERSION) {
        return Err(format!(
            "{} is not IREE {VERSION}, which this driver is for: its runtime/version.json says {:?}",
            source.display(),
            version.trim()
        ));
    }
    println!("cargo::metadata=source={}", source.display());
    Ok(source)
}

/// The folder of the crate with IREE's sources, wherever cargo keeps it.
fn packaged_source() -> Result<PathBuf, String> {
    if let Some(source) = registry_source() {
        return Ok(source);
    }
    // Cargo also finds vendored sources, but answers only when all dependencies of the workspace are fetched.
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--offline"])
        .output()
        .map_err(|error| format!("starting cargo metadata: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // One string out of one JSON document: the manifest of the package.
    text.split("\"manifest_path\":\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .find(|path| path.contains("eerie-sys-"))
        .and_then(|path| Some(Path::new(path).parent()?.join("iree")))
        .ok_or_else(|| {
            "IREE's sources, which come with the crate eerie-sys, are not in cargo's registry: run `cargo fetch`, or \
             set IREE_SOURCE_DIR"
                .to_owned()
        })
}

/// IREE's sources in cargo's registry folder.
fn registry_source() -> Option<PathBuf> {
    let home = named("CARGO_HOME").or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))?;
    let registries = std::fs::read_dir(home.join("registry/src")).ok()?;
    registries
        .flatten()
        .map(|registry| registry.path().join("eerie-sys-0.5.0/iree"))
        .find(|source| source.join("runtime/version.json").is_file())
}

fn gcc_headers() -> Option<PathBuf> {
    let output = Command::new("gcc").arg("-print-file-name=include").output().ok()?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    path.is_dir().then_some(path)
}

/// Writes the same rows twice: for the C compiler, and for Rust to compare with.
fn layout_tables(out: &Path) -> Result<PathBuf, String> {
    let rows = std::fs::read_to_string("layout.txt").map_err(|error| format!("layout.txt: {error}"))?;
    let mut c =
        String::from("#include <stddef.h>\n#include \"wrapper.h\"\nconst size_t hal_sys_layout[] = {\n");
    let mut rust = String::from("&[\n");
    for row in rows.lines().map(str::trim).filter(|row| !row.is_empty() && !row.starts_with('#')) {
        // Writing to a string cannot fail.
        let _ = match row.split_once('.') {
            Some((name, field)) => {
                let _ = writeln!(c, "  offsetof({name}, {field}),");
                writeln!(rust, "  ({row:?}, core::mem::offset_of!({name}, {field})),")
            }
            None => {
                let _ = writeln!(c, "  sizeof({row}),");
                writeln!(rust, "  ({row:?}, core::mem::size_of::<{row}>()),")
            }
        };
    }
    c.push_str("};\n");
    rust.push_str("]\n");
    let path = out.join("layout.c");
    std::fs::write(&path, c).map_err(|error| format!("{}: {error}", path.display()))?;
    std::fs::write(out.join("layout.rs"), rust).map_err(|error| format!("layout.rs: {error}"))?;
    Ok(path)
}

/// Links the runtime that `cargo xtask setup` has built, for Rust programs and tests. A static library for CMake
/// gets IREE from there and bundles nothing of it.
fn link(folder: &Path) {
    println!("cargo::rerun-if-changed={}", folder.join(runtime::ARCHIVE).display());
    println!("cargo::rustc-link-search=native={}", folder.display());
    for library in ["iree_hal_runtime", "flatcc_parsing"] {
        println!("cargo::rustc-link-lib=static:-bundle={library}");
    }
    // C code that is instrumented needs the sanitizer's runtime as the first shared library. The Rust side is
    // instrumented for the same one.
    if env::var("CARGO_CFG_SANITIZE")
        .is_ok_and(|sanitizers| sanitizers.split(',').any(|one| one == "address"))
    {
        println!("cargo::rustc-link-lib=dylib=asan");
    }
    println!("cargo::rustc-link-lib=dylib=m");
}
