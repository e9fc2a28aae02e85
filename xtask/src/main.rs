//! The project's front door.
fn main() -> anyhow::Result<()> {
    Ok(())
}
