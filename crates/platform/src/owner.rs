//! Names of users and groups.
//!
//! The system may ask a directory server for each name, so every answer is cached, including empty
//! ones.
#![allow(unsafe_code)]

use fullbore_format::{acl::AclNames, entry::Owner};
use std::{
    collections::HashMap,
    ffi::{CStr, CString, c_char, c_int},
    hash::Hash,
    mem::MaybeUninit,
    path::PathBuf,
    ptr,
    sync::{Arc, Mutex, PoisonError},
};

/// A cache of the system's answers. Threads can share it; while one asks the system, the others
/// wait.
#[derive(Debug, Default)]
pub struct OwnerNames {
    users: Mutex<HashMap<u32, Arc<str>>>,
    groups: Mutex<HashMap<u32, Arc<str>>>,
    uids: Mutex<HashMap<Box<str>, Option<u32>>>,
    gids: Mutex<HashMap<Box<str>, Option<u32>>>,
}

impl OwnerNames {
    /// Returns the name of a user; empty if the system does not know it or the name is not UTF-8.
    pub fn user(&self, uid: u32) -> Arc<str> {
        cached(&self.users, uid, || user_name(uid).unwrap_or_default())
    }

    /// Returns the name of a group; empty if the system does not know it or the name is not UTF-8.
    pub fn group(&self, gid: u32) -> Arc<str> {
        cached(&self.groups, gid, || group_name(gid).unwrap_or_default())
    }

    /// Returns the number of the user with this name, if the user exists here.
    pub fn uid(&self, user: &str) -> Option<u32> {
        cached(&self.uids, user.into(), || user_number(user))
    }

    /// Returns the number of the group with this name, if the group exists here.
    pub fn gid(&self, group: &str) -> Option<u32> {
        cached(&self.gids, group.into(), || group_number(group))
    }

    /// Returns user and group numbers on this system: by name if the name exists here, otherwise by
    /// number.
    pub fn numbers(&self, owner: &Owner) -> (u32, u32) {
        let is_named = |name: &&str| !name.is_empty();
        let user = Some(&*owner.user).filter(is_named);
        let group = Some(&*owner.group).filter(is_named);
        (
            user.and_then(|name| self.uid(name)).unwrap_or(owner.uid),
            group.and_then(|name| self.gid(name)).unwrap_or(owner.gid),
        )
    }
}

impl AclNames for OwnerNames {
    fn name(&self, is_user: bool, number: u32) -> Arc<str> {
        if is_user {
            self.user(number)
        } else {
            self.group(number)
        }
    }

    fn number(&self, is_user: bool, name: &str) -> Option<u32> {
        if is_user {
            self.uid(name)
        } else {
            self.gid(name)
        }
    }
}

fn cached<K: Eq + Hash, V: Clone>(
    map: &Mutex<HashMap<K, V>>,
    key: K,
    ask: impl FnOnce() -> V,
) -> V {
    map.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .entry(key)
        .or_insert_with(ask)
        .clone()
}

fn user_name(uid: u32) -> Option<Arc<str>> {
    user_text(uid, |entry| entry.pw_name)
}

/// Returns the home directory of a user from the system's database.
pub fn home_of(uid: u32) -> Option<PathBuf> {
    user_text(uid, |entry| entry.pw_dir)
        .filter(|home| !home.is_empty())
        .map(|home| PathBuf::from(&*home))
}

/// Returns one of the texts in the system's record of a user.
fn user_text(uid: u32, field: impl Fn(&libc::passwd) -> *mut c_char) -> Option<Arc<str>> {
    let call = |entry: *mut libc::passwd, text: *mut c_char, len, found: *mut *mut libc::passwd| {
        // SAFETY: `ask` passes space for an entry, `len` bytes for its text, and a place for the
        // answer.
        unsafe { libc::getpwuid_r(uid, entry, text, len, found) }
    };
    // SAFETY: the system filled the entry, and its texts are strings in `text`, which outlives this
    // call.
    ask(call, |entry| unsafe { text_of(field(entry)) })?
}

fn group_name(gid: u32) -> Option<Arc<str>> {
    let call = |entry: *mut libc::group, text: *mut c_char, len, found: *mut *mut libc::group| {
        // SAFETY: as in `user_name`.
        unsafe { libc::getgrgid_r(gid, entry, text, len, found) }
    };
    // SAFETY: as in `user_name`.
    ask(call, |entry| unsafe { text_of(entry.gr_name) })?
}

fn user_number(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let call = |entry: *mut libc::passwd, text: *mut c_char, len, found: *mut *mut libc::passwd| {
        // SAFETY: as in `user_name`; `name` is a string that outlives the call.
        unsafe { libc::getpwnam_r(name.as_ptr(), entry, text, len, found) }
    };
    ask(call, |entry| entry.pw_uid)
}

fn group_number(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let call = |entry: *mut libc::group, text: *mut c_char, len, found: *mut *mut libc::group| {
        // SAFETY: as in `user_number`.
        unsafe { libc::getgrnam_r(name.as_ptr(), entry, text, len, found) }
    };
    ask(call, |entry| entry.gr_gid)
}

/// # Safety
/// `text` is null or a string that outlives this call.
unsafe fn text_of(text: *const c_char) -> Option<Arc<str>> {
    if text.is_null() {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(text) }.to_str().ok().map(Arc::from)
}

/// Calls one of the four functions with growing space for text until it suffices, and applies
/// `take` to the answer.
///
/// A group of 100,000 members needs about 1 MiB. An entry that needs more than 16 MiB counts as
/// unknown.
fn ask<E, T>(
    call: impl Fn(*mut E, *mut c_char, usize, *mut *mut E) -> c_int,
    take: impl FnOnce(&E) -> T,
) -> Option<T> {
    let mut text: Vec<c_char> = vec![0; 1024];
    let mut entry = MaybeUninit::<E>::uninit();
    loop {
        let mut found: *mut E = ptr::null_mut();
        match call(
            entry.as_mut_ptr(),
            text.as_mut_ptr(),
            text.len(),
            &mut found,
        ) {
            libc::ERANGE if text.len() < 16 << 20 => text.resize(text.len() * 4, 0),
            libc::EINTR => {}
            0 if !found.is_null() => {
                // SAFETY: `found` points to `entry`, which the system has filled.
                return Some(take(unsafe { &*found }));
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_a_name_and_a_number() {
        let names = OwnerNames::default();
        for _ in 0..2 {
            assert_eq!((&*names.user(0), &*names.group(0)), ("root", "root"));
            assert_eq!((names.uid("root"), names.gid("root")), (Some(0), Some(0)));
            assert_eq!(home_of(0), Some("/root".into()));
        }
    }

    #[test]
    fn unknown_users_and_groups_have_no_name_and_no_number() {
        let names = OwnerNames::default();
        assert_eq!(
            (&*names.user(3_999_999_999), &*names.group(3_999_999_999)),
            ("", "")
        );
        assert_eq!(
            (names.uid("no such user"), names.gid("no\0group")),
            (None, None)
        );
    }
}
