//! PostgreSQL: sessions, backups of clusters, their files, and what a restore makes of them.

mod postgres_backup;
mod postgres_files;
mod postgres_restore;
mod postgres_session;
mod wal;
