//! The environment of programs that this one starts for a user: hooks, commands whose output is backed up, ssh.
//!
//! They get the environment of this process without secrets that are meant for this program alone.

use std::{env, process::Command};

/// The passphrase of encrypted repositories and archives.
const PASSPHRASE: &str = "FULLBORE_PASSPHRASE";

/// Beginnings of variables of object stores. Most are not secret, such as a region or the name of a profile.
const STORES: [&str; 4] = ["AWS_", "AZURE_", "GOOGLE_", "FULLBORE_STORAGE_"];

/// Words in names of variables of a store that hold a secret, or name a file that holds one.
const SECRET_WORDS: [&str; 6] = ["KEY", "SECRET", "TOKEN", "SAS", "PASSWORD", "CREDENTIAL"];

/// Takes passphrases and credentials of storages out of the environment that a program will get.
pub fn without_secrets(command: &mut Command) -> &mut Command {
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_secret) {
            command.env_remove(name);
        }
    }
    command
}

fn is_secret(name: &str) -> bool {
    let is_of_store = STORES.iter().any(|begin| name.starts_with(begin));
    let has_secret = || SECRET_WORDS.iter().any(|word| name.contains(word));
    name == PASSPHRASE || is_of_store && has_secret()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_secret_and_settings_of_other_programs_are_not() {
        for name in [
            "FULLBORE_PASSPHRASE",
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "AZURE_STORAGE_KEY",
            "AZURE_STORAGE_SAS_TOKEN",
            "AZURE_CLIENT_SECRET",
            "GOOGLE_SERVICE_ACCOUNT_KEY",
            "GOOGLE_APPLICATION_CREDENTIALS",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in [
            "AWS_REGION",
            "FULLBORE_STORAGE_ENDPOINT",
            "AWS_PROFILE",
            "AZURE_STORAGE_ACCOUNT",
            "PGPASSWORD",
            "SSH_AUTH_SOCK",
            "FULLBORE_KEY_FILE",
            "PATH",
        ] {
            assert!(!is_secret(name), "{name}");
        }
    }
}
