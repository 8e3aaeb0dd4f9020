from stateroom.cli.app import main

main()
