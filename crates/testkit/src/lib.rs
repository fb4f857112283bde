//! What the programs of tests share: runs of the real program, trees, backups made by hand, and the servers that tests need.

pub mod browser;
pub mod fake_gcs;
pub mod fault_proxy;
pub mod fixture;
pub mod growth;
pub mod pool;
#[macro_use]
pub mod runs;
pub mod schema;
pub mod servers;
pub mod shared;
pub mod slow_line;
pub mod sshd;
pub mod stores;
pub mod terminal;
pub mod web;
