"""One module per subcommand: arguments, a call of the core, output. Nothing else."""
