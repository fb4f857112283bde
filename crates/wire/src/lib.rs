//! The words between two hosts: frames, messages, listings, keys of objects. Pure; input is never trusted.
//!
//! Belongs here: how a message is read and written, and its bounds. Does not belong here: connections, and what a call does.

#![warn(missing_docs)]

pub mod certificate;
pub mod frame;
pub mod key;
pub mod listing;
pub mod message;
pub mod object;
pub mod object_call;
pub mod service;
pub mod wire_error;

pub use key::MAX_NAME_BYTES;
pub use object::{ListedObject, PutIf, Take, Version};
