# As much of Homebrew's formula language as deploy/homebrew/agentmem.rb uses; another word of it is a NoMethodError.
#
#     ruby homebrew.rb FORMULA              its class as JSON
#     ruby homebrew.rb FORMULA install SRC  install and post_install into the working directory, of the sources SRC
#     ruby homebrew.rb FORMULA test BIN     its test block with the programs in BIN

require "json"
require "open3"
require "pathname"
require "socket"

TOLD = Hash.new { |told, key| told[key] = [] }
PREFIX = Pathname.pwd

class Pathname
  def /(other) = self + other.to_s

  def install(*names)
    mkpath
    names.each { |name| (self/name).write(File.read(name)) }
  end

  def write_exec_script(*targets)
    mkpath
    targets.flatten.each do |target|
      (self/target.basename).write("#!/bin/bash\nexec \"#{target}\" \"$@\"\n")
      (self/target.basename).chmod(0o755)
    end
  end
end

module Places
  def opt_bin = Pathname("/opt/homebrew/opt/agentmem/bin")
  def var = Pathname("/opt/homebrew/var")
  def etc = ARGV[1] == "install" ? PREFIX/"etc" : Pathname("/opt/homebrew/etc")
end

class Service
  include Places

  def std_service_path_env = "/opt/homebrew/bin:/opt/homebrew/sbin:/usr/bin:/bin:/usr/sbin:/sbin"

  %i[run keep_alive process_type working_dir log_path error_log_path environment_variables].each do |name|
    define_method(name) { |value| TOLD[:service] << [name, value] }
  end
end

class Formula
  include Places

  class << self
    %i[desc homepage url sha256 license depends_on].each { |name| define_method(name) { |value| TOLD[name] << value } }
    def service(&block) = Service.new.instance_eval(&block)
    def test(&block) = define_method(:run_test, &block)
    def [](_name) = new
  end

  def version = TOLD[:url][0][/-([0-9.]+)\.tar/, 1]
  def bin = ARGV[1] == "test" ? Pathname(ARGV[2]) : PREFIX/"bin"
  def libexec = PREFIX/"libexec"
  def opt_libexec = Pathname(ENV.fetch("PYTHON_LIBEXEC"))
  def buildpath = Pathname(ARGV[2])
  def free_port = TCPServer.open("127.0.0.1", 0) { |server| server.addr[1] }

  def system(*command)
    command = command.map { |word| word.to_s.sub("[metal]", ENV.fetch("EXTRA", "[metal]")) }
    Kernel.system(*command) or raise "failed: #{command.join(" ")}"
  end

  def spawn(*command) = Process.spawn(*command.map(&:to_s))
  def shell_output(command) = pipe_output(command, "", 0)

  def pipe_output(command, input, status)
    output, ended = Open3.capture2(command, stdin_data: input)
    raise "status #{ended.exitstatus}: #{command}" if ended.exitstatus != status

    output
  end

  def assert_match(expected, actual)
    raise "#{expected} is not in #{actual}" unless actual.include?(expected)
  end
end

load ARGV[0]
case ARGV[1]
when nil then puts JSON.generate(TOLD)
when "install" then Dir.chdir(ARGV[2]) { Agentmem.new.install } && Agentmem.new.post_install
when "test" then Agentmem.new.run_test
end
