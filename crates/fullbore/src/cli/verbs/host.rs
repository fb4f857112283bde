//! Arguments of `fullbore host`.

use super::{host_add::HostAdd, host_remove::HostRemove};
use crate::cli::{
    options::EXIT_CODES,
    output::{printed, told},
};
use clap::{Args, Subcommand, ValueHint};
use fullbore_format::{error::Result, text::duration};
use fullbore_storage::{Storages, check_host_name};
use std::{ffi::OsString, path::PathBuf, time::Duration};

/// `fullbore host`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(in crate::cli) struct HostArgs {
    #[command(subcommand)]
    verb: HostVerb,
}

#[derive(Debug, Subcommand)]
enum HostVerb {
    /// Let a host add backups, and print a script that sets it up
    ///
    /// The script has the put key of the host, if the repository is encrypted, a certificate if --ca is given, and a profile. Run it as
    /// root on the host: `fullbore host add REPO web1 … | ssh root@web1 sh`. It holds secrets.
    Add {
        #[command(flatten)]
        host: NamedHost,
        /// How the host reaches REPO [default: ssh://THISHOST/REPO]
        ///
        /// A repository in an object store is the same for all.
        #[arg(long, value_name = "LOCATION")]
        at: Option<String>,
        /// A directory that the host backs up, or postgres:// (repeatable)
        #[arg(long = "source", value_name = "PATH", required = true)]
        sources: Vec<String>,
        /// Expect a backup of the host within this time, such as 1d
        #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "1d")]
        every: Duration,
        /// The public key of the host: age1…, "ssh-ed25519 AAAA…" or @FILE
        ///
        /// By default a new key is made, and the script has it.
        #[arg(long = "for", value_name = "RECIPIENT")]
        recipient: Option<String>,
        /// The public ssh key of the host, for a line of authorized_keys
        #[arg(long, value_name = "KEY")]
        ssh_key: Option<String>,
        /// Make a certificate with ca.pem and ca.key in this directory
        ///
        /// It is for a server of `serve --listen`, and made by the program openssl.
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        ca: Option<PathBuf>,
        /// The days for which the certificate is valid
        #[arg(long, value_name = "N", default_value = "365", requires = "ca", value_parser = clap::value_parser!(u32).range(1..))]
        days: u32,
    },
    /// End the enrolment of a host, and say what it can still do
    ///
    /// Its put key is removed. Its backups stay, and no more of them are expected.
    Remove {
        #[command(flatten)]
        host: NamedHost,
    },
}

/// A host and a repository.
#[derive(Debug, Args)]
pub(super) struct NamedHost {
    /// The repository
    #[arg(value_name = "REPO", value_hint = ValueHint::DirPath)]
    pub(super) repository: OsString,
    /// The name of the host, as its backups have it
    #[arg(value_name = "HOST", value_parser = host_name)]
    pub(super) name: String,
}

fn host_name(word: &str) -> std::result::Result<String, String> {
    check_host_name(word).map_err(|error| error.line())?;
    Ok(word.to_owned())
}

pub(in crate::cli) fn run(args: HostArgs, storages: &Storages) -> Result<u8> {
    match args.verb {
        HostVerb::Add {
            host,
            at,
            sources,
            every,
            recipient,
            ssh_key,
            ca,
            days,
        } => {
            let add = HostAdd {
                storages,
                host,
                at,
                sources,
                every,
                recipient,
                ssh_key,
                ca,
                days,
            };
            printed(|out| add.run(out).map(|()| 0))
        }
        HostVerb::Remove { host } => {
            let remove = HostRemove { storages, host };
            told(|out| remove.run(out).map(|()| 0))
        }
    }
}
