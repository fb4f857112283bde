//! The program: see the library.

use fullbore_platform::memory::Allocator;
use std::process::ExitCode;

/// Makes a failed allocation an error instead of an abort.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    fullbore::cli::main()
}
