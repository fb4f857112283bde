//! What is fuzzed, and what it stands on. With the rest of the program, which no parser needs, it took minutes to build.

#[path = "floor/budget.rs"]
pub mod budget;
#[path = "floor/crypt.rs"]
pub mod crypt;
#[path = "../src/error.rs"]
pub mod error;
#[path = "../src/format/mod.rs"]
pub mod format;
#[path = "floor/storage.rs"]
pub mod storage;
