//! What is known of PostgreSQL's files, held against a real cluster.
//!
//! Skipped where PostgreSQL is not installed.

mod control;
mod layout;
mod manifest;
mod pages;
mod server;
