//! Makes the bindings: finds IREE's sources and libclang, runs bindgen, and compiles what C defines inline.

use std::env;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The IREE release that this crate binds to.
const VERSION: &str = "3.13.0";

fn main() {
    for input in ["wrapper.h", "layout.txt", "external_drivers.c", "build.rs"] {
        println!("cargo::rerun-if-changed={input}");
    }
    for variable in ["IREE_SOURCE_DIR", "IREE_LIB_DIR", "LIBCLANG_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if let Err(error) = build() {
        println!("cargo::error={error}");
    }
}

fn build() -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let source = iree_source()?;
    find_libclang()?;
    let mut arguments = vec![format!("-I{}", source.join("runtime/src").display())];
    arguments.extend(DEFINES.iter().map(|define| format!("-D{define}")));
    if let Some(builtin) = gcc_headers() {
        arguments.push(format!("-isystem{}", builtin.display()));
    }

    bindgen::Builder::default()
        .header("wrapper.h")
        .clang_args(&arguments)
        .allowlist_function("iree_.*")
        .allowlist_type("iree_.*")
        .allowlist_var("(iree_|IREE_).*")
        .blocklist_type("iree_.*_test_.*")
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
        .rust_edition(bindgen::RustEdition::Edition2024)
        .generate()
        .map_err(|error| format!("bindgen could not read IREE's headers in {}: {error}", source.display()))?
        .write_to_file(out.join("bindings.rs"))
        .map_err(|error| format!("writing the bindings: {error}"))?;

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
    link();
    Ok(())
}

/// What the linked libraries are built with, as far as a layout depends on it.
const DEFINES: [&str; 4] =
    ["NDEBUG", "IREE_THREADING_ENABLE=1", "IREE_ALLOCATOR_SYSTEM_CTL=iree_allocator_libc_ctl", "_GNU_SOURCE"];

fn iree_source() -> Result<PathBuf, String> {
    let source = match env::var_os("IREE_SOURCE_DIR").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
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

/// The folder of the crate that carries IREE's sources, wherever cargo keeps it.
fn packaged_source() -> Result<PathBuf, String> {
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
            format!(
                "cargo metadata does not name eerie-sys: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            )
        })
}

/// bindgen loads libclang when it runs; names the one that the project's own commands install.
fn find_libclang() -> Result<(), String> {
    if env::var_os("LIBCLANG_PATH").is_some_and(|path| !path.is_empty()) {
        return Ok(());
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    for folder in out.ancestors() {
        let Ok(entries) = std::fs::read_dir(folder.join("python/lib")) else { continue };
        for entry in entries.flatten() {
            let native = entry.path().join("site-packages/clang/native");
            if native.is_dir() {
                // SAFETY: a build script has one thread.
                unsafe { env::set_var("LIBCLANG_PATH", native) };
                return Ok(());
            }
        }
    }
    let found = Command::new("sh").args(["-c", "ldconfig -p 2>/dev/null | grep -q libclang"]).status();
    if found.is_ok_and(|status| status.success()) || Path::new("/usr/lib/llvm-14/lib").is_dir() {
        return Ok(());
    }
    Err("libclang is needed to read IREE's headers: run `cargo xtask setup`, or set LIBCLANG_PATH".into())
}

fn gcc_headers() -> Option<PathBuf> {
    let output = Command::new("gcc").arg("-print-file-name=include").output().ok()?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    path.is_dir().then_some(path)
}

/// The same rows twice: as the C compiler sees them, and for Rust to compare with.
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

/// Links the runtime that `cargo xtask build` has built, for Rust programs and tests. A static library for CMake gets
/// its IREE from there, so nothing of it is bundled.
fn link() {
    let named = env::var_os("IREE_LIB_DIR").filter(|path| !path.is_empty()).map(PathBuf::from);
    let found = named.or_else(|| {
        let out = PathBuf::from(env::var_os("OUT_DIR")?);
        out.ancestors()
            .map(|folder| folder.join("iree/lib"))
            .find(|lib| lib.join("libiree_hal_runtime.a").is_file())
    });
    let Some(folder) = found else { return };
    println!("cargo::rerun-if-changed={}", folder.join("libiree_hal_runtime.a").display());
    println!("cargo::rustc-link-search=native={}", folder.display());
    for library in ["iree_hal_runtime", "flatcc_parsing"] {
        println!("cargo::rustc-link-lib=static:-bundle={library}");
    }
    // What the C compiler has instrumented needs its runtime, which has to be the first of the shared libraries. The Rust side
    // is instrumented for the same one.
    if env::var("CARGO_CFG_SANITIZE")
        .is_ok_and(|sanitizers| sanitizers.split(',').any(|one| one == "address"))
    {
        println!("cargo::rustc-link-lib=dylib=asan");
    }
    println!("cargo::rustc-link-lib=dylib=m");
}
