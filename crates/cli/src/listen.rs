//! The socket of `taper serve`, and what can be wrong with its address.

use crate::output;
use anyhow::{Context, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use tokio::net::{TcpListener, lookup_host};

/// Listens at the first address of `host` that this machine has. `localhost` is 127.0.0.1 or ::1; clients try both.
pub(crate) async fn listen(host: &str, port: u16) -> Result<TcpListener> {
    // As URLs write them.
    let name = host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(host);
    let found = lookup_host((name, port)).await.with_context(|| {
        format!(
            "--host {host:?} is not known here; it takes an address or a name of this machine, without http:// and port"
        )
    })?;
    let mut addresses: Vec<SocketAddr> = found.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    let mut last = None;
    for address in addresses {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(listener),
            // At the next address of the same name, clients would sometimes reach us and sometimes the other program.
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Err(explained(error, address)),
            Err(error) => last = Some(explained(error, address)),
        }
    }
    match last {
        Some(error) => Err(error),
        None => bail!("--host {host:?} has no address"),
    }
}

/// Files that a server has open besides its connections.
const OTHER_FILES: u64 = 256;

/// Has this process open as many files as `max_connections` need, as far as the system lets it: by default that is a thousand,
/// and connections beyond it could not even be refused.
pub(crate) fn allow_connections(max_connections: u32) {
    let needed = u64::from(max_connections) + OTHER_FILES;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return;
    }
    let allowed = maximum.map_or(needed, |maximum| needed.min(maximum));
    let is_raised = setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), maximum }).is_ok();
    if !is_raised || allowed < needed {
        let limit = if is_raised { allowed } else { current.unwrap_or(allowed) };
        output::status(&format!(
            "this process may open {limit} files (ulimit -n), which is too few for --max-connections {max_connections}"
        ));
    }
}

fn explained(error: Error, address: SocketAddr) -> anyhow::Error {
    let (ip, port) = (address.ip(), address.port());
    let reason = match error.kind() {
        ErrorKind::AddrInUse => {
            format!("port {port} of {ip} is in use by another program; --port names another, --port 0 takes a free one")
        }
        ErrorKind::AddrNotAvailable => {
            format!("{ip} is not an address of this machine; --host 0.0.0.0 listens at all that are")
        }
        ErrorKind::PermissionDenied => format!("this user may not listen at port {port}; try one from 1024 up"),
        _ => format!("cannot listen at {address}"),
    };
    anyhow::Error::new(error).context(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn try_listen(host: &str, port: u16) -> Result<TcpListener> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it starts");
        runtime.block_on(listen(host, port))
    }

    fn refusal(host: &str, port: u16) -> String {
        format!("{:#}", try_listen(host, port).expect_err("it cannot listen there"))
    }

    #[test]
    fn names_and_addresses_of_this_machine_are_listened_at() {
        for host in ["localhost", "127.0.0.1", "0.0.0.0"] {
            let listener = try_listen(host, 0).unwrap_or_else(|error| panic!("{host}: {error:#}"));
            assert!(listener.local_addr().is_ok_and(|address| address.port() > 0));
        }
    }

    #[test]
    fn a_port_in_use_is_named_with_the_way_out() {
        let taken = try_listen("localhost", 0).expect("it listens");
        let port = taken.local_addr().expect("it has an address").port();
        let message = refusal("localhost", port);
        assert!(message.contains(&format!("port {port}")) && message.contains("in use"), "{message}");
        assert!(message.contains("--port"), "{message}");
    }

    #[test]
    fn what_is_not_of_this_machine_is_refused_by_name() {
        for host in ["", "http://localhost", "localhost:80", "no such host", "256.1.1.1"] {
            assert!(refusal(host, 0).contains(&format!("--host {host:?}")), "{host}: {}", refusal(host, 0));
        }
        // From the block for documentation.
        assert!(refusal("192.0.2.1", 0).contains("192.0.2.1 is not an address of this machine"));
    }
}
