//! The web pages of fullbore: a server of its own, sessions, and pages about the backups of repositories.
//!
//! [`http`] takes connections and decides who may ask. [`site`] finds the page. `catalog` keeps what is listed of a repository,
//! and `pages` show it; each page is also an object of JSON. What a command computes, such as a difference or the plan
//! of a restore, is asked of that command, in a process of its own (`ask`). Pages change nothing but through `restores`.
//! Does not belong here: arguments, and how storages are opened.

mod ask;
mod asked;
mod catalog;
mod downloads;
pub mod http;
mod pages;
mod place;
mod restores;
pub mod site;
mod zip;
