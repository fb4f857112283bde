//! Where cargo puts the program and what tests leave: it says so to the tests of a package, and not to a library of theirs.

use std::{env, path::Path};

fn main() {
    let out = env::var("OUT_DIR").expect("cargo sets it");
    // target/debug/build/testkit-…/out
    let profile = Path::new(&out).ancestors().nth(3).expect("so deep");
    let program = profile.join(format!("fullbore{}", env::consts::EXE_SUFFIX));
    println!("cargo::rustc-env=FULLBORE_PROGRAM={}", program.display());
    let kept = profile.parent().expect("so deep").join("tmp");
    println!("cargo::rustc-env=FULLBORE_TEST_TMPDIR={}", kept.display());
    println!("cargo::rerun-if-changed=build.rs");
}
