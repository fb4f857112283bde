//! `fullbore serve`.

use crate::{
    command::serve::{AllowedLocation, Serve},
    error::Result,
    storage::access::tls_files,
};
use clap::{ArgGroup, Args};
use std::net::SocketAddr;

/// `fullbore serve`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("way").required(true).args(["stdio", "listen"]))]
pub(in crate::cli) struct ServeArgs {
    /// Talk over standard input and output, with the fullbore that started ssh
    #[arg(long)]
    stdio: bool,
    /// Wait here for hosts with a certificate of --tls-ca, until SIGTERM; they use fullbore://HOST:PORT
    #[arg(long, value_name = "ADDR:PORT", requires_all = ["allow", "tls_cert", "tls_key", "tls_ca"])]
    pub(in crate::cli) listen: Option<SocketAddr>,
    /// Offer one location only, to read:LOCATION it, to append:LOCATION backups to it, or to write:LOCATION it
    #[arg(long, value_name = "WHAT:LOCATION", value_parser = |word: &str| AllowedLocation::parse(word).map_err(|error| error.what))]
    allow: Option<AllowedLocation>,
}

pub(in crate::cli) fn run(args: ServeArgs) -> Result<u8> {
    let serve = Serve {
        allowed: args.allow,
        ..Serve::default()
    };
    match args.listen {
        Some(address) => serve.listen(address, &tls_files()),
        None => serve.run(),
    }
    .map(|()| 0)
}
