//! PostgreSQL: sessions, the files of a cluster, pages, WAL, the manifest of a base backup,
//! recovery settings.
//!
//! Rules that comments cite by number are those of `doc/postgres.md`.
//!
//! Belongs here: all knowledge of PostgreSQL's files, protocol and settings. Does not belong here:
//! restoring the files of a cluster (`restore::cluster`), which uses the plans made here.

mod access;
pub mod archiver;
mod by_protocol;
pub mod cluster_backup;
mod cluster_part;
pub mod conninfo;
pub mod control;
pub mod data_dir;
pub mod file_copies;
mod init_forks;
pub mod inventory;
pub mod late_files;
pub mod layout;
pub mod lsn;
pub mod manifest;
pub mod new_init_forks;
mod opened_request;
mod outside_config;
pub mod page_checksum;
pub mod page_stage;
pub mod relation;
pub mod replication;
pub mod request;
pub mod restore;
mod same_server;
#[cfg(any(test, feature = "sample-wal"))]
pub mod sample_wal;
pub mod session;
pub mod socket_session;
pub mod source;
pub mod stopped;
pub mod summary_anchor;
pub mod timeline;
pub mod tls;
mod trees;
pub mod wal_archive;
pub mod wal_reader;
mod wal_source;
pub mod wal_summaries;
