# A tap's formula: deploy/homebrew/README.md says how to publish it.
class Agentmem < Formula
  desc "Server of agents' memory: a KV cache per agent, kept on disk"
  homepage "https://pypi.org/project/agentmem-server/"
  url "https://files.pythonhosted.org/packages/source/a/agentmem-server/agentmem_server-0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000" # of the release
  license "Apache-2.0"

  depends_on arch: :arm64
  depends_on macos: :sonoma # MLX's wheels
  depends_on "python@3.12"

  def install
    system python, "-m", "venv", libexec
    system libexec/"bin/pip", "wheel", "--no-deps", "--wheel-dir", libexec, buildpath
    bin.write_exec_script(%w[agentmem agentmem-store agentmem-worker agentmem-gateway].map { |name| libexec/"bin"/name })
    (buildpath/"agentmem.toml").write <<~TOML
      # Options of `agentmem up` under `brew services`; others are in tables [worker], [store] and [gateway].
      [up]
      # model = ["mlx-community/Llama-3.2-3B-Instruct-4bit"]
    TOML
    etc.install "agentmem.toml"
  end

  # MLX has only wheels. Homebrew would rewrite their libraries after `install`, for which some have no room.
  def post_install
    system libexec/"bin/pip", "install", "#{libexec}/agentmem_server-#{version}-py3-none-any.whl[metal]"
  end

  service do
    run [opt_bin/"agentmem", "up", "--log-format", "text"]
    environment_variables PATH: std_service_path_env, AGENTMEM_CONFIG: etc/"agentmem.toml"
    keep_alive successful_exit: false
    process_type :interactive
    working_dir var
    log_path var/"log/agentmem.log"
    error_log_path var/"log/agentmem.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/agentmem --version")
    http = "127.0.0.1:#{free_port}"
    stack = spawn bin/"agentmem", "up", "demo", "--http", http, "--grpc", "127.0.0.1:0", "--metrics", ""
    begin
      system "curl", "--silent", "--fail", "--retry", "90", "--retry-delay", "2", "--retry-connrefused",
             "http://#{http}/readyz"
      ask = "curl --silent --fail --header x-agent-id:brew --json @- http://#{http}/v1/chat/completions"
      turn = '{"model": "demo", "max_tokens": 20, "messages": [{"role": "user", "content": "%s"}]}'
      pipe_output(ask, format(turn, "The key is in the cellar."), 0)
      assert_match "in the cellar", pipe_output(ask, format(turn, "Where is the key?"), 0)
    ensure
      Process.kill "TERM", stack
      Process.wait stack
    end
  end

  def python
    Formula["python@3.12"].opt_libexec/"bin/python"
  end
end
