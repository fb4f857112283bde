//! `fullbore serve`.

use crate::{
    cli::values::rate,
    command::serve::{AllowedAccess, Serve},
    error::Result,
    storage::{AppendRules, access::tls_files, check_host_name},
};
use clap::{ArgGroup, Args};
use std::{net::SocketAddr, num::NonZeroU64};

/// `fullbore serve`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("way").required(true).args(["stdio", "listen"]))]
pub(in crate::cli) struct ServeArgs {
    /// Talk over standard input and output, with the fullbore that started ssh
    #[arg(long, conflicts_with = "listen")]
    // a variable that stands for the other one does not count then
    stdio: bool,
    /// Wait here for hosts with a certificate of --tls-ca, until SIGTERM; they use fullbore://HOST:PORT
    #[arg(long, value_name = "ADDR:PORT", requires_all = ["allow", "tls_cert", "tls_key", "tls_ca"])]
    pub(in crate::cli) listen: Option<SocketAddr>,
    /// Offer one location only, to read:LOCATION it, to append:LOCATION backups to it, or to write:LOCATION it; or files, source:PATH
    ///
    /// source:PATH can be repeated. The other host may then back up what is at or below these paths (backup --run-on dest), and do nothing else.
    #[arg(long, value_name = "WHAT:LOCATION", value_parser = |word: &str| AllowedAccess::parse(word).map_err(|error| error.what))]
    allow: Vec<AllowedAccess>,
    /// Take backups of this host only, with append:; with --listen it is the name of the certificate
    #[arg(long, value_name = "NAME", requires = "allow", conflicts_with = "listen", value_parser = host_name)]
    host: Option<String>,
    /// Let the backups of each host take at most so much, with append:
    #[arg(long, value_name = "SIZE", requires = "allow", value_parser = rate)]
    quota: Option<NonZeroU64>,
    /// Let each host begin at most so many backups within 24 hours, with append:
    #[arg(long, value_name = "N", requires = "allow", value_parser = clap::value_parser!(u32).range(1..))]
    max_per_day: Option<u32>,
}

fn host_name(word: &str) -> std::result::Result<String, String> {
    check_host_name(word).map_err(|error| error.line())?;
    Ok(word.to_owned())
}

pub(in crate::cli) fn run(args: ServeArgs) -> Result<u8> {
    let (allowed, sources_below) = AllowedAccess::divide(args.allow)?;
    let serve = Serve {
        allowed,
        sources_below,
        rules: AppendRules {
            host: args.host,
            quota: args.quota.map(NonZeroU64::get),
            max_per_day: args.max_per_day,
            ..AppendRules::default()
        },
        ..Serve::default()
    };
    match args.listen {
        Some(address) => serve.listen(address, &tls_files()),
        None => serve.run(),
    }
    .map(|()| 0)
}
