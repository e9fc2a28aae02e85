//! A driver of somebody else's: a crate outside the workspace, made, built, linked into a C program, and run.
//!
//! It is what a reader of `docs/backend.md` does: the template under another name, a static library of its own from
//! `hal-driver`, and one line that exports the registration function.

use crate::iree::{Flavour, Tree};
use crate::setup;
use crate::workspace;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

const MANIFEST: &str = r#"[package]
name = "acme-driver"
version = "0.1.0"
edition = "2024"

[lib]
crate-type = ["staticlib"]

[dependencies]
hal-backend = { path = "@ROOT@/backends/api" }
hal-driver = { path = "@ROOT@/hal-driver", default-features = false }

[workspace]
"#;

const EXPORT: &str = "\nhal_driver::export_driver!(iree_hal_acme_driver_module_register, Template);\n";

pub(crate) fn run() -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, None)?;
    tree.build(&["hal_runtime_archives"])?;
    let root = workspace::root()?;
    let folder = workspace::target()?.join("third-party");
    std::fs::create_dir_all(folder.join("src")).with_context(|| format!("creating {}", folder.display()))?;
    let manifest = MANIFEST.replace("@ROOT@", &root.display().to_string());
    write(&folder.join("Cargo.toml"), &manifest)?;
    let template =
        std::fs::read_to_string(root.join("backends/template/src/lib.rs")).context("reading the template")?;
    let renamed = template.replace("\"template\"", "\"acme\"").replace("template://", "acme://");
    write(&folder.join("src/lib.rs"), &(renamed + EXPORT))?;
    // The same versions as here, so that nothing has to be fetched.
    std::fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).context("copying Cargo.lock")?;

    println!("building a driver outside the workspace, in {}", folder.display());
    let built = workspace::cargo()
        .args(["build", "--release", "--quiet", "--offline"])
        .current_dir(&folder)
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .env("LIBCLANG_PATH", tree.python().libclang().unwrap_or_default())
        .status()
        .context("starting cargo")?;
    if !built.success() {
        bail!("a driver outside the workspace does not build");
    }
    let program = folder.join("smoke");
    let library = tree.folder().join("lib");
    let linked = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-DREGISTER=iree_hal_acme_driver_module_register"])
        // As the runtime was built.
        .args([
            "-DNDEBUG",
            "-DIREE_THREADING_ENABLE=1",
            "-DIREE_ALLOCATOR_SYSTEM_CTL=iree_allocator_libc_ctl",
        ])
        .arg("-I")
        .arg(setup::iree_source()?.join("runtime/src"))
        .arg(root.join("hal-driver/examples/smoke.c"))
        .arg(folder.join("target/release/libacme_driver.a"))
        .arg(library.join("libiree_hal_runtime.a"))
        .arg(library.join("libflatcc_parsing.a"))
        .args(["-lm", "-lpthread", "-ldl", "-o"])
        .arg(&program)
        .status()
        .context("starting cc")?;
    if !linked.success() {
        bail!("a driver outside the workspace does not link into a C program");
    }
    let status = Command::new(&program)
        .arg("acme")
        .status()
        .with_context(|| format!("starting {}", program.display()))?;
    Ok(status.success())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}
