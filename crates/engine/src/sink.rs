//! Destinations outside of a repository: a local file, standard output, or nowhere.

pub mod local_file;
pub mod sealed;
pub mod stdout;
