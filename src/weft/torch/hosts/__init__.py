"""Process groups over several hosts: shared memory inside a host, Gloo between hosts."""
